"""Measurements of a run: time, memory, interference, power, energy, metrics.

Not here: statistics over several runs (`analysis/stats`).
"""
