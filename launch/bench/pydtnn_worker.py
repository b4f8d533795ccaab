"""PyDTNN's trainer with the model of its README; runs in the Python that has PyDTNN, by path.

PyDTNN has since added padding and dropout to its `simplecnn`; the README's recipe has neither.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def create_recipe(model: Any) -> None:
    """Add the layers."""
    layers = import_module("pydtnn.layers")
    for layer in (
        layers.Input(shape=(28, 28, 1)),
        layers.Conv2D(nfilters=4, filter_shape=(3, 3), activation="relu"),
        layers.Conv2D(nfilters=8, filter_shape=(3, 3), activation="relu"),
        layers.MaxPool2D(pool_shape=(2, 2), stride=2),
        layers.Flatten(),
        layers.FC(shape=(128,), activation="relu"),
        layers.FC(shape=(10,), activation="softmax"),
    ):
        model.add(layer)


if __name__ == "__main__":
    recipe = ModuleType("pydtnn.models.recipe")  # where PyDTNN looks for `--model recipe`
    recipe.create_recipe = create_recipe  # type: ignore[attr-defined]
    sys.modules[recipe.__name__] = recipe
    import_module("pydtnn.pydtnn_benchmark").main()
