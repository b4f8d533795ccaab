"""`python -m common twins`: are a PyTorch model and a Keras model the same, where do they part, and why.

Here: the contract of a model file, what the two processes hand over, causes, verdict, report and page. Not here: what
runs a model (`torch_impl/twins`, `keras_impl/twins`).
"""
