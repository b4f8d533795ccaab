"""Steps of planted efficiencies: what a fit has to find again."""

from itertools import product

import numpy as np

from analysis.projection.efficiency import Efficiencies
from analysis.projection.fitting import Steps
from analysis.projection.measured import MeasuredStep
from analysis.projection.peaks import Peaks
from analysis.projection.study import study_of

MACHINE = "made, 2 cores"
PEAKS = {
    threads: Peaks(device=MACHINE, threads=threads, flops_per_second=1e11 * threads, bytes_per_second=3e10)
    for threads in (1, 2)
}
PLANTED = Efficiencies(
    compute=0.4, dense=0.8, memory=0.4, half=20.0, step_seconds=2e-4, operation_seconds=1e-5, thread_seconds=2e-5,
    latency_seconds=5e-5, byte_seconds=5e-10,
)  # fmt: skip


def made_steps(*, framework="torch", noise=0.0, planted=PLANTED):
    """Return steps of five models, three batch sizes, one and two threads, and two ranks.

    Args:
        framework: of all.
        noise: standard deviation of log(seconds).
        planted: by which their times are computed.
    """
    grid = list(product(("mlp", "dense500", "cnn", "simplecnn", "resnet34"), (16, 64, 256), ((1, 1), (2, 1), (1, 2))))
    unmeasured = [
        MeasuredStep(
            framework=framework, model=model, image=(1, 40, 40), outputs=10, optimizer="sgd", batch=batch,
            threads=threads, ranks=ranks, seconds=(1.0,),
        )
        for model, batch, (threads, ranks) in grid
    ]  # fmt: skip
    random = np.random.default_rng(0)
    seconds = Steps(unmeasured, PEAKS).seconds(planted) * np.exp(noise * random.standard_normal(len(grid)))
    return [
        MeasuredStep(**{**vars(step), "seconds": (float(one),)}) for step, one in zip(unmeasured, seconds, strict=True)
    ]


def made_study():
    """Return the study of steps of both frameworks."""
    steps = [*made_steps(noise=0.1), *made_steps(framework="keras", noise=0.1)]
    return study_of(steps, machine=MACHINE, date="2026-01-01", packages={"numpy": "2.0"}, peaks=list(PEAKS.values()))
