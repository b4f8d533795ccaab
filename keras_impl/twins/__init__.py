"""Keras' side of `python -m common twins`: puts PyTorch's arrays into a model, and finds where the two part."""
