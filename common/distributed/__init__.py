"""The ranks of a run: the communicator, device pinning, output of rank 0.

Not here: averaging of gradients, which each framework folder does with its own Horovod.
"""
