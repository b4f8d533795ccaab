"""Bringing run folders back from other machines.

Not here: the jobs that wrote them (`launch/jobs`), bundles that carry the project there (`launch/offline`).
"""
