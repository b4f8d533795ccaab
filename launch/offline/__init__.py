"""Bundles: everything that a machine without a network needs, packed here and set up there.

Not here: set-up itself (`launch/installation`), run folders on their way back (`launch/transfer`).
"""
