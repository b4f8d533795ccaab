"""Checks before a job waits or runs: hosts, software, network, data, one all-reduce.

Not here: checks of the project's own results (`launch/checks`).
"""
