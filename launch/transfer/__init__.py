"""Bringing run folders back from other machines."""
