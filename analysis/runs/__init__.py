"""Run folders as data: options that name them, reading, cells of equal settings, validity checks, published results.

Not here: questions about them (`analysis/questions`).
"""
