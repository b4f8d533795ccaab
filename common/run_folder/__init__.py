"""The run folder: what rank 0 writes and every reader reads.

Here: records, checkpoints, power traces, TensorBoard events, the description of the machine and software. Not here:
tables and plots of many runs (`analysis`).
"""
