"""Run folders as data: reading, cells of runs with equal settings, validity checks, published results.

Not here: questions about them (`analysis/questions`).
"""
