"""Finds ranks that hang: a small process beside each rank watches it and hears from the watchers of the other ranks.

The lowest that lives judges. A thread would not do, as it stops with its process.
"""
