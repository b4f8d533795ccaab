"""A run from its start to its end, the same in both frameworks.

Here: `Run`, `Epoch` and its listeners (checkpoints, ranks that come and go), starting and resuming, the record, the
frame of both programs. Not here: how a batch is trained on (`strategies/` of each framework folder).
"""
