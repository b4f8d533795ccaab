"""Set-up: the environment, the pinned packages, the Horovod wheel.

Not here: bundles for machines without a network (`launch/offline`).
"""
