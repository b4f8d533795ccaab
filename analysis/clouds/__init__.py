"""The command `clouds`; and what is known of CTE-POWER and AWS without a run: published, computed, projected.

Not here: how runs of several sites are compared (`analysis/questions/clouds`).
"""
