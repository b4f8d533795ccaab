"""One HTML page of all findings.

Not here: the findings (`analysis/questions`).
"""
