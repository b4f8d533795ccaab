"""The time of a training step from a model's layers and a device's peaks: a roofline per layer, the ring, overheads.

Not here: questions about runs and their tables and plots (`analysis/questions`), prices (`analysis/questions/clouds`).
"""
