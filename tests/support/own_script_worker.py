"""Runs a user's own script on a rank of a server (`rank_server.py`); see tests/keras_impl/test_callbacks.py."""

import runpy

import numpy as np

from keras_impl.gradient_exchange import name_anew


def run(script):
    """Run it to its end; return what is left of the training: the history, and model and rates at the end."""
    name_anew()  # a script before may have wrapped one optimizer more on one rank
    left = runpy.run_path(script)
    model = left["model"]
    return {
        "history": left["history"].history,
        "loss": model.evaluate(left["x_val"], left["y_val"], return_dict=True, verbose=0)["loss"],
        "weights": np.concatenate([weight.numpy().ravel() for weight in model.weights]).tolist(),
        "updates": int(model.optimizer.iterations),
        "rate": float(model.optimizer.learning_rate),
    }
