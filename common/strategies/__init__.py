"""What strategies need beside messages: batches, measured parts of a batch, planted stragglers, runs on servers, drawn work.

Not here: how ranks exchange gradients and weights, which each framework folder does in its `strategies.py`; messages to
servers (`common/parameter_server`).
"""
