"""Bundles: everything that a machine without a network needs."""
