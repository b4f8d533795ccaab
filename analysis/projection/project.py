"""The projected time of a training step of a model, batch and device.

    v100 = read_sites().gpus["v100"]
    step = project("resnet34", image=(1, 148, 197), outputs=9, batch=128, device=v100, ranks=4, bandwidth=12.5e9)
    step.seconds_low, step.seconds, step.seconds_high    # the interval and what it rests on: step.basis
    step.images_per_second, step.epoch_seconds(7650), step.parts

On the machine of the study the interval is that of the errors on models that were left out of the fit. A device that
was never measured gets one from the lowest and the highest efficiency of all cells of the study: an assumption, and
`basis` says so.
"""

from dataclasses import dataclass

import numpy as np

from analysis.projection.efficiency import (
    AT_PEAK,
    Efficiencies,
    exchange_seconds,
    numbers_of,
    overhead_seconds,
    roofline_seconds,
)
from analysis.projection.peaks import Peaks, peaks_of
from analysis.projection.study import Study, read_study
from analysis.projection.work import FLOAT32, PARTS, Operation, step_operations
from common.errors import UserError
from common.model.specs import model_spec
from common.sites.table import Cpu, Gpu

_HALF = 2  # bytes of a value in mixed precision


@dataclass(frozen=True, kw_only=True)
class StepProjection:
    """A step, projected.

    Attributes:
        seconds_low, seconds, seconds_high: of a step; the interval is what `basis` says.
        parts: input, forward, backward, update, overhead, exchange -> seconds; their sum is `seconds`.
        images: of the step, of all ranks together.
        validated: whether the efficiencies were measured on this device.
        basis: what the interval rests on, in words to be shown beside every figure.
    """

    seconds_low: float
    seconds: float
    seconds_high: float
    parts: dict[str, float]
    images: int
    validated: bool
    basis: str

    @property
    def images_per_second(self) -> float:
        """Of all ranks together."""
        return self.images / self.seconds

    def epoch_seconds(self, samples: int) -> tuple[float, float, float]:
        """Return low, middle and high seconds of an epoch; an incomplete last batch is dropped, as in training."""
        steps = samples // self.images
        return steps * self.seconds_low, steps * self.seconds, steps * self.seconds_high


def project(
    model: str,
    *,
    image: tuple[int, int, int],
    batch: int,
    device: Gpu | Cpu | Peaks,
    framework: str = "torch",
    outputs: int = 10,
    optimizer: str = "sgd",
    dtype: str = "float32",
    ranks: int = 1,
    bandwidth: float | None = None,
    training: bool = True,
    study: Study | None = None,
) -> StepProjection:
    """Project the time of a step.

    Args:
        model: a name of `common.model.specs`.
        image: channels, height, width.
        batch: images per rank.
        device: of each rank; peaks of the table of sites or measured.
        framework: torch or keras.
        outputs: classes.
        optimizer: as in the settings.
        dtype: float32, or float16 or bfloat16 for mixed precision, with float32 weights and gradients.
        ranks: 1: nothing is exchanged.
        bandwidth: bytes per second of the network between ranks; None: as on the machine of the study.
        training: False: inference, the input and forward pass alone.
        study: None: the project's own.

    Raises:
        UserError: unknown framework, images too small for the model, or a device without memory bandwidth.
    """
    study = study or read_study()
    if framework not in study.fits:
        raise UserError(f"no steps of this framework were measured. Received: {framework}. Use {', '.join(study.fits)}")
    peaks = device if isinstance(device, Peaks) else peaks_of(device, dtype=dtype)
    spec = model_spec(model, input_shape=image, outputs=outputs)
    size = FLOAT32 if dtype == "float32" else _HALF
    operations = step_operations(spec, batch=batch, value_bytes=size, optimizer=optimizer)
    if not training:
        operations = tuple(one for one in operations if one.part in ("input", "forward"))
    sent = FLOAT32 * spec.parameters if training else 0.0
    fit = study.fits[framework]
    parts = _parts(operations, peaks, fit.efficiencies, ranks=ranks, sent=sent, bandwidth=bandwidth)
    seconds = sum(parts.values())
    validated = peaks.device == study.machine
    if validated:
        low, high = (seconds * error for error in fit.errors)
        basis = f"90 % interval of the errors on left-out models, {study.machine}, {fit.cells} cells"
    else:
        others = [
            _parts(operations, peaks, one.efficiencies, ranks=ranks, sent=sent, bandwidth=bandwidth)
            for one in study.fits.values()
        ]
        overheads = [one["overhead"] + one["exchange"] for one in others]
        at_peak = sum(_rooflines(operations, peaks, AT_PEAK).values())
        # Where frameworks outdo the products by which peaks are measured, a device is still not assumed to.
        low = at_peak / min(1.0, max(one.highest for one in study.fits.values())) + min(overheads)
        high = at_peak / min(one.lowest for one in study.fits.values()) + max(overheads)
        basis = f"assumption: never measured there; the interval spans all efficiencies of {study.machine}"
    return StepProjection(
        seconds_low=min(low, seconds),
        seconds=seconds,
        seconds_high=max(high, seconds),
        parts=parts,
        images=batch * ranks,
        validated=validated,
        basis=basis,
    )


def _parts(
    operations: tuple[Operation, ...], peaks: Peaks, found: Efficiencies, *, ranks: int, sent: float,
    bandwidth: float | None,
) -> dict[str, float]:  # fmt: skip
    overhead = overhead_seconds(np.array([len(operations)], float), np.array([peaks.threads], float), found)
    exchange = exchange_seconds(np.array([ranks], float), np.array([sent]), found, bytes_per_second=bandwidth)
    others = {"overhead": float(overhead[0]), "exchange": float(exchange[0]) if sent else 0.0}
    return _rooflines(operations, peaks, found) | others


def _rooflines(operations: tuple[Operation, ...], peaks: Peaks, found: Efficiencies) -> dict[str, float]:
    """Return the seconds of the operations of each part of a step."""
    seconds = roofline_seconds(
        numbers_of(operations), peak_flops=np.full(len(operations), peaks.flops_per_second),
        peak_bytes=np.full(len(operations), peaks.bytes_per_second), found=found,
    )  # fmt: skip
    parts = np.array([one.part for one in operations])
    return {part: float(seconds[parts == part].sum()) for part in PARTS}
