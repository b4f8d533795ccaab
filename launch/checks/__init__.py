"""Checks of the project itself: parity of the frameworks, speed, reproducibility of a run."""
