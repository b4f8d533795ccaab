"""What surrounds the training loop, the same in both frameworks.

Here: the run setup, the learning-rate schedule, resuming, checkpoint timing, the entry point of both programs. Not
here: the loops, which each framework folder writes natively.
"""
