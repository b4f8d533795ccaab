"""Hyper-parameter search by Optuna: many runs, each at a point of a space of settings.

Here: the search file, samplers and pruners, studies and their storage, the trials, the shipped search file. Not here:
curves, importance and the best settings (`analysis`).
"""
