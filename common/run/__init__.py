"""What surrounds the training loop, the same in both frameworks.

Here: starting and resuming, checkpoints, the record, the entry point of both programs. Not
here: the loops, which each framework folder writes natively.
"""
