"""What a run needs is made and checked before it starts: data, model, shares, updates."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.config import Config
from common.data.batches import normalization_table
from common.data.loading import Dataset, load_dataset
from common.data.sharding import split_validation
from common.errors import UserError
from common.measurement.step_profile import LEFT_OUT_STEPS
from common.model.specs import model_spec
from common.run_folder.records import RUN_FILE
from common.run_folder.tensorboard_events import require_tensorboard
from common.task.shares import Share, check_batch_norm, divided, shares_of
from common.task.task import Task


def prepare(config: Config, *, ranks: int, first_copies: int | None = None) -> Task:
    """Fetch the data if needed and check every setting against it.

    Args:
        ranks: those that train, servers not included.
        first_copies: of the model, that the run was first started with, whose updates and learning rates it keeps
            (`--elastic`); None: those of these ranks.

    Raises:
        UserError: settings or data do not fit together.
    """
    if config.record.tensorboard:
        require_tensorboard()
    if config.record.horovod_timeline and ranks == 1:
        raise UserError(
            "a timeline shows what ranks exchange, and there is only one rank. Received: --horovod-timeline. "
            "Start two ranks or more, or leave it out"
        )
    config.check_ranks(ranks + (config.strategy.servers or 0))
    copies = ranks // config.parts.count * (config.strategy.replicas or 1)
    first_copies = first_copies or copies
    dataset = load_dataset(
        config.data.dataset,
        source_folder=Path(config.data.data_folder) if config.data.data_folder else None,
        image_size=config.data.image_size,
        gray=config.data.gray,
    )
    height, width, channels = dataset.image_shape
    spec = model_spec(config.model.model, input_shape=(channels, height, width), outputs=_outputs(config, dataset))
    # Equal parts, where they are yet to be measured.
    parts = config.balance.parts or (1.0,) * copies
    shares = shares_of(config, divided(config, parts=parts, first_copies=first_copies))
    check_batch_norm(spec, shares)
    training, validation = _split_training(config, dataset)
    steps = _steps(config, samples=len(training), shares=shares)
    total = config.training.epochs * steps
    if config.training.max_steps is not None:
        total = min(total, config.training.max_steps)
    _check_length(config, total=total)
    table = normalization_table(
        mean=dataset.mean,
        standard_deviation=dataset.standard_deviation,
        pixels=dataset.train.images.dtype,
        normalization=config.data.normalization,
        dtype=np.dtype(config.model.dtype),
    )
    task = Task(config, shares, dataset, spec, table, training, validation, steps, total, first_copies)
    _ = task.partition  # a model that cannot be divided is found now
    record = config.record
    begins = record.resume is None and not (record.resume_or_start and (record.folder() / RUN_FILE).exists())
    if config.training.start_weights is not None and begins:
        _ = task.first_weights  # and a run of another model
    return task


def _check_length(config: Config, *, total: int) -> None:
    """Raise UserError if a run of so many updates is too short for what is asked of it."""
    if config.record.profile and total <= LEFT_OUT_STEPS:
        raise UserError(
            f"a profile skips the first {LEFT_OUT_STEPS} updates. Received: --profile and {total} updates. "
            "Train for more updates"
        )
    warmup = config.strategy.warmup_allreduce
    if warmup >= max(total, 1):
        raise UserError(
            f"the warm-up is not shorter than the run, which has {total} updates. Received: --warmup-allreduce "
            f"{warmup}. Give fewer, or --strategy allreduce"
        )


def _split_training(config: Config, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return sorted rows of `dataset.train` for training and for validation: the data set's own split, or one cut."""
    samples, share = len(dataset.train), config.data.validation_share
    if not dataset.validation_samples:
        training, validation = split_validation(samples, share=share, seed=config.training.seed)
    elif share > 0:
        raise UserError(
            f"the data set has its own validation split ({dataset.validation_samples} samples). Received: "
            f"--validation-share {share}. Leave it out"
        )
    else:
        training, validation = np.split(np.arange(samples), [samples - dataset.validation_samples])
    for flag, value in (
        ("--early-stop", config.training.early_stop),
        ("--target-accuracy", config.training.target_accuracy),
    ):
        if value is not None and not len(validation):
            raise UserError(
                f"{flag} needs validation samples. Received: {flag} {value} --validation-share {share}. "
                "Give --validation-share, such as 0.1"
            )
    return training, validation


def _outputs(config: Config, dataset: Dataset) -> int:
    outputs = config.model.outputs or dataset.class_count
    if outputs < dataset.class_count:
        raise UserError(
            f"the model has fewer outputs than {dataset.name} has classes ({dataset.class_count}). "
            f"Received: --outputs {outputs}. Leave --outputs out or give {dataset.class_count} or more"
        )
    return outputs


def _steps(config: Config, *, samples: int, shares: Sequence[Share]) -> int:
    """Return the updates of an epoch."""
    of_update = sum(share.samples for share in shares)
    steps, batch_size = samples // of_update, config.training.batch_size
    if steps == 0:
        passes = config.device.backward_passes_per_step
        raise UserError(
            f"the batch is larger than each rank's shard ({samples // len(shares)} of {samples} training samples on "
            f"{len(shares)} ranks). Received: --batch-size {batch_size}. "
            f"Give {max(1, samples // (len(shares) * passes))} or less"
        )
    wanted = config.training.steps_per_epoch
    if wanted is not None and wanted > steps:
        raise UserError(
            f"an epoch has {steps} complete global batches of {of_update} images. "
            f"Received: --steps-per-epoch {wanted}. Give {steps} or less"
        )
    return wanted or steps
