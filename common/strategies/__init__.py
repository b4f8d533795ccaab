"""What strategies need beside messages: batches of a rank, measured shares, planted stragglers, runs on servers.

Not here: how ranks exchange gradients and weights, which each framework folder does in its `strategies.py`; messages to
servers (`common/parameter_server`).
"""
