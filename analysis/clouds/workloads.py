"""Trainings whose time is projected for every machine of the table of sites."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from analysis.projection.project import StepProjection, project
from common.sites.table import SECONDS_PER_HOUR, Gpu, Site, Sites

# Between the GPUs of a node, bytes per second: PCIe 3.0 x16, where the table states no link.
NODE_LINK = 15.75e9


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training.

    Attributes:
        image: channels, height, width.
        batch: images of an update, of all ranks together.
        samples: images of an epoch.
        epochs: to its target.
        target: what they reach, in words; empty: none is published.
    """

    model: str
    image: tuple[int, int, int]
    outputs: int
    batch: int
    samples: int
    epochs: int = 1
    target: str = ""

    @property
    def label(self) -> str:
        """Model, image and batch."""
        channels, height, width = self.image
        return f"{self.model}, {height}x{width}x{channels}, batch {self.batch}"


def _mnist(model: str, batch: int) -> Workload:
    return Workload(model=model, image=(1, 28, 28), outputs=10, batch=batch, samples=60_000)


def _thesis(batch: int, *, epochs: int = 1, target: str = "") -> Workload:
    return Workload(
        model="resnet34", image=(1, 148, 197), outputs=9, batch=batch, samples=7_650, epochs=epochs, target=target
    )


WORKLOADS = (
    *(_mnist(model, batch) for model in ("mlp", "cnn", "simplecnn") for batch in (64, 1024)),
    *(_thesis(batch) for batch in (32, 128)),
)
# The thesis' benchmark: at this global batch 100 epochs reach this accuracy, on any number of GPUs.
TO_TARGET = _thesis(128, epochs=100, target="79.5 % test accuracy")


def settings_of(workload: Workload) -> dict[str, Any]:
    """Return the arguments of `project` that describe a workload on one GPU."""
    return {name: getattr(workload, name) for name in ("model", "image", "outputs", "batch")}


def step_on(workload: Workload, gpu: Gpu) -> StepProjection:
    """Project a step in float32 on one GPU.

    Raises:
        UserError: the GPU's memory bandwidth is not published.
    """
    return project(**settings_of(workload), device=gpu)


@dataclass(frozen=True, kw_only=True)
class NodeTime:
    """A workload projected for one node of a site, on all of its GPUs.

    Attributes:
        low, hours, high: to the target, training alone.
    """

    name: str
    site: Site
    gpu: Gpu
    low: float
    hours: float
    high: float


def node_times(sites: Sites, workload: Workload) -> Iterator[NodeTime]:
    """Project a workload for a node of every site whose GPUs are known; the global batch is divided among them."""
    for name, site in sites.sites.items():
        gpu = sites.gpu_of(site)
        if gpu is None or gpu.memory_bandwidth_gb_s is None:
            continue
        link = 1e9 * site.gpu_link_gb_s if site.gpu_link_gb_s else NODE_LINK
        settings = settings_of(workload) | {"batch": workload.batch // site.gpus}
        step = project(**settings, device=gpu, ranks=site.gpus, bandwidth=link)
        low, middle, high = (
            workload.epochs * seconds / SECONDS_PER_HOUR for seconds in step.epoch_seconds(workload.samples)
        )
        yield NodeTime(name=name, site=site, gpu=gpu, low=low, hours=middle, high=high)


def not_projected(sites: Sites) -> list[str]:
    """Return a note on each described machine that has no figures to project with."""
    notes = []
    for name, site in sites.sites.items():
        gpu = sites.gpu_of(site)
        if gpu and gpu.memory_bandwidth_gb_s is None:
            notes.append(f"{name} is not projected: the memory bandwidth of its {gpu.name} is not published")
        elif gpu is None and site.processor:
            notes.append(f"{name} is not projected: the peaks of its processors are not in the table")
    return notes
