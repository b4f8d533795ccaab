"""How far the projection of a step's time can be trusted: errors on what was left out, published times, ratios.

Not here: how a time is projected (`analysis/projection`).
"""
