"""Checks of the project itself: parity of the frameworks, speed, reproducibility of a run.

Not here: showing and judging their results (`analysis`), checks of hosts (`launch/preflight`).
"""
