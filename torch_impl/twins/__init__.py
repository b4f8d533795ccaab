"""PyTorch's side of `python -m common twins`: runs a model, and records what flows through it."""
