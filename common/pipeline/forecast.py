"""How a model is divided among the ranks of a copy of it, and what memory the settings let expect of each."""

import math

import numpy as np

from common.config import Config, PartsConfig
from common.model.partition import Partition, cut_into_stages
from common.model.specs import ModelSpec
from common.model.split import split_layers
from common.pipeline.schedule import most_held, operations

FRAMEWORK_BYTES = 5 * 10**8  # roughly, on the host, of a rank that has not built its model


def partition_of(spec: ModelSpec, parts: PartsConfig) -> Partition:
    """Return the parts of the model that the ranks of a copy hold: all of it, but for `layers` and `split`.

    Raises:
        UserError: the model cannot be divided in this way.
    """
    if parts.stages:
        return cut_into_stages(spec, parts.stages, after=parts.cut_after)
    return split_layers(spec, parts.model_ranks) if parts.model_ranks else Partition(spec, (spec,))


def forecast_bytes(partition: Partition, config: Config, *, images: int) -> list[int]:
    """Return the memory that training takes of each rank of a copy of the model, the framework's own not included.

    Args:
        images: of a backward pass, before a pipeline divides them into microbatches.
    """
    parts, forecasts = config.parts, []
    value_bytes = np.dtype(config.model.dtype).itemsize
    for number, part in enumerate(partition.parts):
        held = images
        if parts.stages:
            order = operations(
                parts.pipeline_schedule, stage=number, stages=parts.stages, microbatches=parts.microbatches
            )
            held = most_held(order) * images // parts.microbatches
        forecasts.append(training_bytes(part, images=held, slots=config.optimizer.slots, value_bytes=value_bytes))
    return forecasts


def training_bytes(part: ModelSpec, *, images: int, slots: int, value_bytes: int) -> int:
    """Return the bytes of weights, gradients and the optimizer's state, and of what the backward pass needs.

    That is the output of every layer. Not here: the framework itself, data, buffers of messages and of single layers.

    Args:
        images: whose outputs are held at once: of a batch, or of the microbatches that a stage of a pipeline holds.
        slots: arrays of the optimizer for each weight.
        value_bytes: of a weight or an output.
    """
    weights = sum(math.prod(weight.shape) * (2 + slots if weight.trainable else 1) for weight in part.weights)
    outputs = sum(math.prod(row.output_shape) for row in part.rows)
    return (weights + outputs * images) * value_bytes
