"""Findings and how they are shown: tables, plots, the terminal, JSON.

Not here: the report page (`analysis/report`).
"""
