"""One module or folder per question: frameworks, clouds, scaling, energy and more.

Not here: how findings are shown (`analysis/output`), the thesis' own tables (`analysis/thesis`).
"""
