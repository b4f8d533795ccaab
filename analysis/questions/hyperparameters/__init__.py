"""Accuracy and time by batch size, resolution and validation share; what searches found."""
