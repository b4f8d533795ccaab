"""What strategies need beside messages: measured shares, planted stragglers, runs on servers, records.

Not here: how ranks exchange gradients and weights, which each framework folder does in its `strategies/`; messages to
servers (`common/parameter_server`).
"""
