"""Whether both frameworks, or two runs, trained alike."""
