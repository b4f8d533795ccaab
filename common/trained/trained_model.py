"""The model of a run: its spec, its weights, and what the numbers it reads mean."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from common.config import Config, OneDNN
from common.data.batches import normalization_table
from common.errors import UserError
from common.model.specs import ModelSpec, model_spec
from common.model.weights import Weights, load_weights
from common.run_folder.checkpoints import checkpoint_folders, load_newest_checkpoint
from common.run_folder.records import WEIGHTS_FILE, DataRecord, Hashes, ModelRecord, read_run


@dataclass(frozen=True)
class TrainedModel:
    """A run's model and what its numbers mean."""

    config: Config
    data: DataRecord
    spec: ModelSpec
    weights: Weights

    def table(self, pixels: DTypeLike) -> np.ndarray:
        """Return the float of every pixel value of images of this type, (values, channels)."""
        return normalization_table(
            mean=self.data.mean,
            standard_deviation=self.data.standard_deviation,
            pixels=pixels,
            normalization=self.config.data.normalization,
            dtype=np.dtype(self.config.model.dtype),
        )

    def computed_with(self, onednn: OneDNN) -> "TrainedModel":
        """Return the model as it is computed now: with oneDNN or not, whatever its run had."""
        return replace(self, config=replace(self.config, model=replace(self.config.model, onednn=onednn)))


def read_trained_model(folder: Path) -> TrainedModel:
    """Return the model of a run.

    Raises:
        UserError: no run folder, no weights in it, or weights of another model.
    """
    record = read_run(folder).record
    config, data, model = record.config, record.data, record.model
    if not (isinstance(config, Config) and isinstance(data, DataRecord) and isinstance(model, ModelRecord)):
        raise UserError(f"this run was not measured here and has no model. Received: {folder}. Name another run")
    height, width, channels = data.image_shape
    spec = model_spec(model.name, input_shape=(channels, height, width), outputs=model.outputs)
    file = folder / WEIGHTS_FILE
    if not file.exists() and not checkpoint_folders(folder):
        raise UserError(
            f"this run has no weights and no checkpoint. Received: {folder}. Name a run that has finished an epoch"
        )
    if not file.exists():
        return TrainedModel(config, data, spec, load_newest_checkpoint(folder, spec=spec).weights)
    hashed = record.hashes.final_weights if isinstance(record.hashes, Hashes) else None
    weights = load_weights(file, spec=spec, hashed=hashed if isinstance(hashed, str) else None)
    return TrainedModel(config, data, spec, weights)
