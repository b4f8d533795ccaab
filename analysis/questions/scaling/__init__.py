"""Speedup and efficiency over ranks; models and projections."""
