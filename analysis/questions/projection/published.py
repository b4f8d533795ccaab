"""Published times with their settings, projected: machines on which nothing was measured."""

from collections.abc import Iterator
from dataclasses import dataclass

from analysis.output.tables import Cell, Table
from analysis.projection.project import StepProjection, project
from analysis.projection.study import Study
from analysis.runs.labels import framework_label
from analysis.runs.published import Result, read_published
from analysis.runs.validity import listed
from common.distributed.console import counted
from common.sites.table import Cpu, Gpu, Sites


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A published time and its projection.

    Attributes:
        what: the phases that both contain.
        published: seconds.
        low, projected, high: seconds; the interval is an assumption, as the machine was never measured.
    """

    name: str
    result: Result
    device: Gpu | Cpu
    what: str
    published: float
    low: float
    projected: float
    high: float
    basis: str

    @property
    def is_inside(self) -> bool:
        """Whether the published time is in the interval."""
        return self.low <= self.published <= self.high


def compared(sites: Sites, study: Study) -> tuple[list[Compared], list[str]]:
    """Return all published times that can be projected, and in words why others cannot and which."""
    found: list[Compared] = []
    left_out: dict[str, list[str]] = {}
    for name, result in read_published().results.items():
        device, reason = _device(result, sites, study)
        if device:
            found.append(_compared(name, result, device, study))
        else:
            left_out.setdefault(reason, []).append(name)
    return found, [f"published, not projected: {reason}: {listed(names)}" for reason, names in left_out.items()]


def _device(result: Result, sites: Sites, study: Study) -> tuple[Gpu | Cpu | None, str]:
    """Return the device of each rank, or None and why a result cannot be projected."""
    site = sites.sites.get(result.site)
    if result.training_seconds is None and result.energy_seconds is None:
        return None, "no time is stated"
    if result.framework not in study.fits:
        return None, f"{result.framework} was not measured here"
    if not result.devices or site is None:
        return None, "its device is not stated"
    if result.samples is None or not result.global_batch:
        return None, "its samples or batch are not stated"
    kinds = {device.split(":")[0] for device in result.devices}
    if len(kinds) > 1:
        return None, "it used devices of several kinds"
    found = sites.cpu_of(site) if kinds == {"cpu"} else sites.gpu_of(site)
    return found, "" if found else "its device is not in the table of sites"


def _compared(name: str, result: Result, device: Gpu | Cpu, study: Study) -> Compared:
    parts = list(_phases(result, device, study))
    published = result.training_seconds if result.training_seconds is not None else result.energy_seconds
    assert published is not None, "asked before"
    low, middle, high = (
        sum(times * getattr(step, edge) for _, times, step in parts)
        for edge in ("seconds_low", "seconds", "seconds_high")
    )
    return Compared(
        name=name, result=result, device=device, what=" + ".join(phase for phase, *_ in parts), published=published,
        low=low, projected=middle, high=high, basis=parts[0][2].basis,
    )  # fmt: skip


def _phases(result: Result, device: Gpu | Cpu, study: Study) -> Iterator[tuple[str, float, StepProjection]]:
    """Yield phase, number of steps, step. The thesis validates and tests one image at a time, on every rank."""
    assert result.samples is not None, "asked before"
    training, validation, test = result.samples
    height, width, channels = result.image_shape
    ranks = len(result.devices)

    def step(batch: int, *, is_training: bool) -> StepProjection:
        return project(
            result.model, image=(channels, height, width), outputs=result.classes, device=device, study=study,
            framework=result.framework, batch=batch, ranks=ranks, training=is_training,
        )  # fmt: skip

    yield (
        "training",
        result.epochs * training / result.global_batch,
        step(result.global_batch // ranks, is_training=True),
    )
    # A time that stands alone contains validation; the one that energies rest on, everything.
    if validation and result.validation_seconds is None:
        yield "validation", result.epochs * validation, step(1, is_training=False)
        if result.training_seconds is None:
            yield "test", test, step(1, is_training=False)


def inside_words(found: list[Compared]) -> str:
    """Return how many published times are outside their interval."""
    outside = sum(not one.is_inside for one in found)
    return f"Of {counted(len(found), 'published time')} {outside} are outside their projected interval."


def published_table(found: list[Compared]) -> Table:
    """Return published times beside projected ones."""
    headings = ["published", "place", "framework", "model", "device", "ranks", "batch per rank", "phases",
                "published, s", "projected, s", "interval", "inside",
                "projected / published"]  # fmt: skip
    rows: list[list[Cell]] = [
        [one.name, one.result.where, framework_label(one.result.framework), one.result.model, one.device.name,
         len(one.result.devices), one.result.global_batch // len(one.result.devices), one.what, one.published,
         one.projected, f"{one.low:,.1f} to {one.high:,.1f}",
         "yes" if one.is_inside else "no", one.projected / one.published]
        for one in found
    ]  # fmt: skip
    formats = dict.fromkeys(("ranks", "batch per rank"), "d") | dict.fromkeys(headings[8:10], ",.1f")
    return Table("Published times, projected (interval: assumption, machines never measured)", headings, rows,
                 formats | {headings[-1]: ".2f"})  # fmt: skip
