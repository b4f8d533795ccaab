"""Finds ranks that hang: a process beside each rank watches it and hears from the others', and the lowest judges.

A thread would not do, as it stops with its process. Not here: what happens to the run afterward
(`common/run/`).
"""
