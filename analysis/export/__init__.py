"""The runs in forms that other programs read: tidy tables, MLflow, TensorBoard.

Not here: answers (`analysis/questions`), models of runs (`python -m launch export`).
"""
