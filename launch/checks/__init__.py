"""Checks of the project itself: parity of the frameworks, reproducibility of a run, what faults do.

Not here: speed (`launch/bench`), showing and judging results (`analysis`), checks of hosts (`launch/preflight`).
"""
