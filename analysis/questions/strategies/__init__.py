"""Strategies side by side: time, accuracy, bytes, waiting, staleness; and what documents claim about them."""
