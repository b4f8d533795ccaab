"""One module or folder per question: frameworks, clouds, scaling, energy and more."""
