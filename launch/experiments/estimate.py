"""Estimate the time, energy and cost of a run before it starts.

The time comes from finished runs of the same cell; if there are none, from the multiply-adds of the model and a rough
rate of the hardware, which is right within a factor of about three. Every estimate names its basis.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

from common.config import Config
from common.data.catalog import PUBLISHED
from common.data.images.prepared_file import read_description
from common.data.synthetic import parse_name
from common.errors import expanded
from common.model.specs import ModelSpec, model_spec
from common.run_folder.records import RecordedRun, Status
from common.sites.table import Gpu, Site
from common.utils.cores import usable_cores

START_SECONDS = 12.0  # to start the ranks, import a framework and build a model
# Rough rates, for estimates only: of a core in float32, and the share of a GPU's peak that training reaches.
CORE_FLOPS = 40e9
SHARE_OF_PEAK = 0.3
FLOPS_PER_MULTIPLY_ADD = 2
PASSES_OF_TRAINING = 3  # forward, and backward for inputs and for weights

Basis = Literal["earlier runs", "rough", "not known"]


@dataclass(frozen=True)
class Estimate:
    """What a run will take. None: not known.

    Attributes:
        joules: upper limit: the boards' power limits over the whole time.
        usd: of whole nodes, start-up included; 0 on a machine without an hourly price.
        old_price: whether that price is older than a year.
    """

    seconds: float | None
    basis: Basis
    joules: float | None
    usd: float | None
    old_price: bool = False


def estimate_run(config: Config, *, np: int, site: Site, gpu: Gpu | None, earlier: Sequence[RecordedRun]) -> Estimate:
    """Return what a run will take on a site.

    Args:
        config: its settings.
        np: its ranks.
        site, gpu: where it is to run; without a GPU its cores compute, if unknown as many as here.
        earlier: finished runs of the same cell, made on that site.
    """
    seconds, basis = _seconds(config, np=np, gpu=gpu, cores=site.cores or usable_cores(), earlier=earlier)
    if seconds is None:
        return Estimate(None, basis, None, None)
    ranks_per_node = site.gpus or np
    nodes = math.ceil(np / ranks_per_node)
    joules = seconds * np * gpu.power_watts if gpu else None
    price = site.price()
    usd = site.cost_usd(seconds, nodes=nodes) or 0.0
    return Estimate(seconds, basis, joules, usd, old_price=price is not None and price.is_old(on=date.today()))


def duration_seconds(run: RecordedRun) -> float | None:
    """Return the seconds from the start of a run's record to its end; None if it has not ended."""
    status = run.record.status
    if not isinstance(status, Status) or status.ended_at is None:
        return None
    return (datetime.fromisoformat(status.ended_at) - datetime.fromisoformat(status.started_at)).total_seconds()


@dataclass(frozen=True)
class Outline:
    """Sizes of a data set that are known without loading it."""

    training: int
    validation: int
    test: int
    image_shape: tuple[int, int, int]
    classes: int

    def model(self, config: Config) -> ModelSpec:
        """Return the model that is trained on them."""
        height, width, channels = self.image_shape
        outputs = config.model.outputs or self.classes
        return model_spec(config.model.model, input_shape=(channels, height, width), outputs=outputs)


def _seconds(
    config: Config, *, np: int, gpu: Gpu | None, cores: int, earlier: Sequence[RecordedRun]
) -> tuple[float | None, Basis]:
    durations = [seconds for run in earlier if (seconds := duration_seconds(run)) is not None]
    if durations:
        return START_SECONDS + statistics.median(durations), "earlier runs"
    outline = outline_of(config)
    if outline is None:
        return None, "not known"
    spec = outline.model(config)
    rate = np * gpu.fp32_tflops * 1e12 * SHARE_OF_PEAK if gpu else min(np, cores) * CORE_FLOPS
    training = config.training
    global_batch = training.batch_size * np
    updates = training.epochs * (training.steps_per_epoch or outline.training / global_batch)
    updates = min(updates, training.max_steps or updates)
    validated = outline.validation * (training.epochs // training.validate_every)
    if training.validation == "replicated":
        validated *= np
    passes = PASSES_OF_TRAINING * updates * global_batch + validated + outline.test
    rest = 2 * config.energy.idle_seconds if config.energy.energy else 0.0
    return START_SECONDS + rest + passes * FLOPS_PER_MULTIPLY_ADD * spec.multiply_adds / rate, "rough"


def outline_of(config: Config) -> Outline | None:
    """Return the sizes of the data set; None: not known before it is loaded."""
    name = config.data.dataset
    kind, _, file = name.partition(":")
    if kind == "prepared":
        if not (prepared := expanded(file)).exists():
            return None
        made, _ = read_description(prepared)
        return Outline(
            made.training_samples, made.validation_samples, made.test_samples, made.image_shape, len(made.class_names)
        )
    if name in PUBLISHED:
        published = PUBLISHED[name]
        (samples, test), shape, classes = published.samples, published.image_shape, len(published.class_names)
    elif kind == "synthetic":
        samples, height, width, channels, classes = parse_name(name)
        test, shape = max(1, samples // 6), (height, width, channels)
    else:
        return None
    validation = round(samples * config.data.validation_share)
    return Outline(samples - validation, validation, test, shape, classes)
