"""Statistics of repeated runs: intervals, tests, equivalence.

Not here: which runs are compared (`analysis/questions`).
"""
