"""How many times as fast one device takes a step as another, if both are used equally well."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.projection.project import project
from analysis.projection.study import Fit, Study, read_study
from common.sites.table import Cpu, Gpu

EQUAL = "assumption: both devices reach the same shares of their peaks"


@dataclass(frozen=True, kw_only=True)
class SpeedRatio:
    """Seconds on one device / seconds on another.

    Attributes:
        ratio: with the fitted efficiencies on both.
        low, high: of that, of the fits of all frameworks, of compute alone and of memory alone.
    """

    low: float
    ratio: float
    high: float


def speed_ratio(
    model: str,
    *,
    first: Gpu | Cpu,
    second: Gpu | Cpu,
    bandwidths: tuple[float | None, float | None] = (None, None),
    study: Study | None = None,
    **step: Any,
) -> SpeedRatio:
    """Return how many times as fast `first` is as `second`.

    Args:
        model: a name of `common.model.specs`.
        first, second: the devices.
        bandwidths: of their networks, bytes per second.
        study: None: the project's own.
        step: further arguments of `project`: image, batch, framework, outputs, dtype (of devices with tensor cores;
            others compute in float32), ranks.

    Raises:
        UserError: as `project`.
    """
    study = study or read_study()

    def ratio(of: Study, **changes: Any) -> float:
        settings = step | changes | {"study": of}
        ours, theirs = (
            project(model, device=device, bandwidth=bandwidth, **(settings | _float32_without_tensor_cores(device)))
            for device, bandwidth in zip((first, second), bandwidths, strict=True)
        )
        return theirs.seconds / ours.seconds

    others = [ratio(one, framework=name) for one in _limits(study) for name in one.fits]
    found = ratio(study)
    return SpeedRatio(low=min(found, *others), ratio=found, high=max(found, *others))


def _float32_without_tensor_cores(device: Gpu | Cpu) -> dict[str, str]:
    return {} if isinstance(device, Gpu) and device.tensor_tflops else {"dtype": "float32"}


def _limits(study: Study) -> Iterator[Study]:
    """Yield the study, then with nothing but compute, and nothing but memory, to wait for."""
    yield study
    for nothing in (("memory",), ("compute", "dense")):
        yield replace(study, fits={name: _without(fit, nothing) for name, fit in study.fits.items()})


def _without(fit: Fit, names: Sequence[str]) -> Fit:
    return replace(fit, efficiencies=replace(fit.efficiencies, **dict.fromkeys(names, math.inf)))
