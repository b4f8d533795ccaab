"""Ranks that hang are found: a small process beside each rank watches it, and the lowest one that lives speaks.

Here: what a rank tells its watcher, the watcher, and how it is started. A thread would not do, as it stops with its
process. Not here: what happens to the run afterward (`common/training/session.py`, `common/elastic/`).
"""
