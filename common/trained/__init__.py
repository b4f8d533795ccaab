"""What a trained model is used for.

Here: reading the model of a run, evaluating it, classifying images, writing it for other programs. Not here: training.
"""
