"""Experiments: many runs from one settings file, resumable.

Here: the plan, the estimate, the runs, the shipped experiment files. Not here: statistics over their runs
(`analysis`).
"""
