"""Machines and dated prices, as data with sources.

Not here: how jobs are started at a site (`launch/sites`).
"""
