"""Which part of each update every copy of the model takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.config import Config
from common.data.sharding import share_out
from common.distributed.console import counted
from common.errors import UserError
from common.model.layers import BatchNorm
from common.model.specs import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one copy of the model takes of every update.

    Attributes:
        first_sample: of its samples, within the update's.
        samples: of every update.
        passes: forward and backward passes of an update, one after the other; the microbatches of a pipeline.
        weight: its samples relative to the mean over copies. The mean over copies of (weight x mean over the copy's
            samples) is the mean over all samples of an update.
        loss_factor: of its mean loss in a pass. Gradients of passes are added up and averaged over the copies: with
            this factor, that is the gradient of the mean over the update.
    """

    first_sample: int
    samples: int
    passes: int
    weight: float
    loss_factor: float

    @property
    def samples_per_pass(self) -> int:
        """Samples of one forward and backward pass."""
        return self.samples // self.passes


def shares_of(config: Config, samples: Sequence[int]) -> tuple[Share, ...]:
    """Return the share of each copy of the model.

    Args:
        samples: of each copy in an update.
    """
    # With averaging, each copy learns from its own mean; its weight is for the average of weights.
    is_own_mean = config.strategy.strategy == "averaging"
    microbatches = config.parts.microbatches if config.parts.stages else 1
    passes = config.device.backward_passes_per_step * microbatches
    shares = []
    for copy, own in enumerate(samples):
        weight = own * len(samples) / sum(samples)
        shares.append(
            Share(
                first_sample=sum(samples[:copy]),
                samples=own,
                passes=passes,
                weight=weight,
                loss_factor=(1.0 if is_own_mean else weight) / passes,
            )
        )
    return tuple(shares)


def divided(config: Config, *, parts: Sequence[float], first_copies: int) -> tuple[int, ...]:
    """Return the samples of each copy in an update, in proportion to `parts`; each backward pass has as many.

    Args:
        first_copies: of the run, whose batches make up an update.

    Raises:
        UserError: there are more copies than samples.
    """
    samples = config.training.batch_size * first_copies
    if samples < len(parts):
        raise UserError(
            f"every rank needs an image in each update. Received: {len(parts)} ranks for {samples} images. "
            "Start fewer ranks, or give a larger --batch-size"
        )
    passes = config.device.backward_passes_per_step
    return tuple(of_pass * passes for of_pass in share_out(samples, parts=parts))


def check_batch_norm(spec: ModelSpec, shares: Sequence[Share]) -> None:
    """Raise UserError if a BatchNorm layer sees a single value per channel in a pass of some copy."""
    samples = min(share.samples_per_pass for share in shares)
    for row in spec.rows:
        if isinstance(row.layer, BatchNorm) and samples * math.prod(row.output_shape[1:]) == 1:
            raise UserError(
                f"{spec.name} normalizes over the batch, and its layer {row.layer.name} sees only one value per channel"
                f". Received: a batch of {counted(samples, 'image')} on a rank. Give 2 or more, or larger images"
            )
