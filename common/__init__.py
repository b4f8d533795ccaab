"""The experiment itself, in NumPy: imports no framework and no Horovod."""
