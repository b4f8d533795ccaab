"""Jobs at a site: rendered, submitted, watched, canceled.

Not here: what a site is (`launch/sites`), bringing runs back (`launch/transfer`).
"""
