"""The thesis's energies and energy-delay products from its raw traces, to the digits that it publishes.

The traces are not part of the project: these tests are collected only where the files
are available, in the folder that THESIS_DATA names or in ../shared/reference/thesis.
"""

from statistics import fmean

import pytest
from made_thesis import ORIGINALS

from analysis.thesis.traces import ALL_DEVICES, DEVICES, USED_DEVICES, ThesisEnergy, read_sums, read_trace
from common.measurement.energy import energy_delay, normalized

RESULTS = ORIGINALS / "Resultados_experimentos"
__test__ = RESULTS.is_dir()  # not a skip, which counts as a failure where nothing may be missing

CPU, ONE_GPU, WRAPPED, TWO_GPUS = USED_DEVICES


def sums(environment):
    """Return what the thesis publishes."""
    (path,) = (RESULTS / environment).glob("consumos*.dat")
    return read_sums(path)


def traced(environment):
    """Return the mean of the raw traces; the CPU's is missing, so its sums."""
    paths = sorted((RESULTS / environment).glob("energia*.dat"))
    assert len(paths) == (0 if environment == CPU else 3)
    runs = [read_trace(path).energy() for path in paths] or [sums(environment)]
    joules = {device: fmean(run.joules[device] for run in runs) for device in DEVICES}
    return ThesisEnergy(seconds=fmean(run.seconds for run in runs), joules=joules)


@pytest.mark.parametrize(
    ("environment", "used", "every"),
    [
        (CPU, "8.482e+06", "1.110e+07"),
        (ONE_GPU, "1.1685e+06", "1.277e+06"),
        (WRAPPED, "1.1753e+06", "1.286e+06"),
        (TWO_GPUS, "1.1504e+06", "1.1504e+06"),
    ],
)
def test_energies(environment, used, every):
    for energy in (traced(environment), sums(environment)):
        assert same_digits(energy.sum(USED_DEVICES[environment]), used)
        assert same_digits(energy.sum(ALL_DEVICES), every)


def same_digits(value, printed):
    return f"{value:.{len(printed.split('e')[0]) - 2}e}" == printed


@pytest.mark.parametrize("environment", [ONE_GPU, WRAPPED, TWO_GPUS])
def test_every_device_has_the_published_energy(environment):
    assert traced(environment).joules == pytest.approx(sums(environment).joules, rel=1e-12)


@pytest.mark.parametrize(
    ("environment", "by_trace", "published"),
    [(ONE_GPU, 6594.0, 6599), (WRAPPED, 6705.8, 6705), (TWO_GPUS, 3712.2, 3730.5), (CPU, 78773.5, 78773.5)],
)
def test_times(environment, by_trace, published):
    assert round(traced(environment).seconds, 1) == by_trace
    assert sums(environment).seconds == published


# Of the CPU, of 1 GPU, of 1 GPU wrapped and of 2 GPUs; the published ones for used devices from edps.csv.
@pytest.mark.parametrize(
    ("devices", "by_traces", "published"),
    [
        (USED_DEVICES, ("86.71", "1", "1.0228", ".5542"), ("86.648085", "1", "1.021921", ".556526")),
        (
            dict.fromkeys(USED_DEVICES, ALL_DEVICES),
            ("103.87", "1", "1.0237", ".5070"),
            ("103.79", "1", "1.0228", ".5092"),
        ),
    ],
    ids=["used", "all"],
)
def test_energy_delay_products(devices, by_traces, published):
    """Those of the traces and the published ones differ by the time alone: see `test_times`."""
    for source, printed in ((traced, by_traces), (sums, published)):
        products = {
            environment: energy_delay(source(environment).seconds, source(environment).sum(used))
            for environment, used in devices.items()
        }
        relative = normalized(products, base=ONE_GPU).values()
        for value, digits in zip(relative, printed, strict=True):
            decimals = len(digits.partition(".")[2])
            assert f"{value:.{decimals}f}".lstrip("0") == digits
