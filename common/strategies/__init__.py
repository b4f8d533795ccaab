"""What ranks of unequal speed need: parts of a batch by measured speed, planted stragglers.

Not here: how ranks exchange gradients and weights, which each framework folder does in its `strategies.py`.
"""
