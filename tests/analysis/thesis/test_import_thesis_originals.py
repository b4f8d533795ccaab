"""The thesis's tables from the run folders that its raw files become: totals, speedups, accuracies, energies.

The raw files are not part of the project: these tests are collected only where the files
are available, in the folder that THESIS_DATA names or in ../shared/reference/thesis.
"""

from statistics import mean

import pytest
from made_thesis import ORIGINALS

from analysis.__main__ import main
from common.measurement.energy import EnergyRecord, normalized
from common.run_folder.power_file import POWER_FILE, read_power
from common.run_folder.records import NotRecorded, read_run

__test__ = ORIGINALS.is_dir()  # not a skip, which counts as a failure where nothing may be missing
pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All runs of the thesis, imported once."""
    folder = tmp_path_factory.mktemp("imported") / "runs"
    assert main(["import-thesis", str(ORIGINALS), "--folder", str(folder)]) == 0
    return folder


def timed(runs, name):
    """Return the timed runs of an environment, in order."""
    found = [read_run(folder) for folder in runs.glob(f"{name}-r*") if folder.name.rpartition("-r")[0] == name]
    return sorted(found, key=lambda run: int(run.folder.name.rpartition("-r")[2]))


def mean_total(runs, name, *fields):
    """Return the mean over the runs of an environment of the sum of some totals."""
    values = []
    for run in timed(runs, name):
        values.append(sum(getattr(run.record.totals, field) for field in fields))
    return mean(values)


ALL = ("training_seconds", "validation_seconds", "test_seconds")


@pytest.mark.parametrize(
    ("name", "count", "seconds", "total"),
    [
        ("cpu", 1, (64127, 13525, 870.4), 78522.95),
        ("gpu1", 10, (6008.01, 566.04, 33.69), 6607.74),
        ("gpu1-wrapped", 10, (6037.15, 598.83, 35.89), 6671.87),
        ("gpu2", 10, (3048.93, 602.78, 35.72), 3687.43),
    ],
)
def test_times(runs, name, count, seconds, total):
    assert len(timed(runs, name)) == count
    for field, published in zip(ALL, seconds, strict=True):
        digits = len(str(published).partition(".")[2])
        assert round(mean_total(runs, name, field), digits) == published
    assert round(mean_total(runs, name, *ALL), 2) == total


def test_speedups(runs):
    times = {name: mean_total(runs, name, *ALL) for name in ("cpu", "gpu1", "gpu1-wrapped", "gpu2")}
    assert [f"{times['cpu'] / seconds:.3f}" for seconds in times.values()] == ["1.000", "11.883", "11.769", "21.295"]
    assert [f"{times['gpu1'] / seconds:.3f}" for seconds in times.values()] == ["0.084", "1.000", "0.990", "1.792"]
    assert f"{times['gpu1'] / times['gpu2'] / 2:.4f}" == "0.8960"
    training = [mean_total(runs, name, "training_seconds") for name in ("gpu1", "gpu2")]
    assert f"{training[0] / training[1]:.4f}" == "1.9705"
    assert f"{training[0] / training[1] / 2:.3f}" == "0.985"


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gpu1", (".795", ".771", ".830")),
        ("gpu1-wrapped", (".794", ".774", ".832")),
        ("gpu2", (".730", ".512", ".807")),
    ],
)
def test_accuracies(runs, name, published):
    values = [run.record.totals.test_accuracy for run in timed(runs, name)]
    found = (mean(values), min(values), max(values))
    assert tuple(f"{value:.3f}".lstrip("0") for value in found) == published


def test_accuracies_of_both_cpu_runs(runs):
    values = [run.record.totals.test_accuracy for name in ("cpu", "cpu2") for run in timed(runs, name)]
    assert [round(value, 3) for value in values] == [0.794, 0.814]
    assert round(mean(values), 3) == 0.804


def test_the_totals_agree_with_the_epochs(runs):
    assert len(timed(runs, "gpu2-batch64")) == 5
    for name in ("gpu1", "gpu2-batch64", "hybrid"):
        for run in timed(runs, name):
            assert len(run.epochs) == run.record.totals.epochs == 100
            training = sum(epoch.training_seconds for epoch in run.epochs)
            assert run.record.totals.training_seconds == pytest.approx(training, rel=1e-12)


def test_the_hybrid(runs):
    spent = [mean_total(runs, name, *ALL[:2]) for name in ("hybrid", "hybrid-gpu1")]
    assert [round(seconds) for seconds in spent] == [17_324, 6_547]
    assert round(mean_total(runs, "hybrid", "test_accuracy"), 3) == 0.668
    assert round(mean_total(runs, "hybrid-gpu1", "test_accuracy"), 3) == 0.769
    assert round(mean_total(runs, "hybrid", "training_seconds") / 100, 1) == 45.1


def energies(runs, pattern):
    """Return the energies of some runs."""
    found = [read_run(folder).record.energy for folder in runs.glob(pattern)]
    assert all(isinstance(energy, EnergyRecord) for energy in found)
    return found


ENVIRONMENTS = {
    "cpu": ("8.482e+06", "1.110e+07"),
    "gpu1": ("1.1685e+06", "1.277e+06"),
    "gpu1-wrapped": ("1.1753e+06", "1.286e+06"),
    "gpu2": ("1.1504e+06", "1.1504e+06"),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_energies(runs, name):
    found = energies(runs, f"{name}-energy[0-9]")
    assert len(found) == (1 if name == "cpu" else 3)
    joules = (mean(one.used_devices.joules or 0 for one in found), mean(one.all_devices.joules or 0 for one in found))
    for value, printed in zip(joules, ENVIRONMENTS[name], strict=True):
        assert f"{value:.{len(printed.split('e')[0]) - 2}e}" == printed
    if name != "cpu":
        (published,) = energies(runs, f"{name}-energy-published")
        assert joules == pytest.approx((published.used_devices.joules, published.all_devices.joules), rel=1e-12)
        by_device = [mean(one.devices[number].joules or 0 for one in found) for number in range(6)]
        assert by_device == pytest.approx([device.joules for device in published.devices], rel=1e-12)


@pytest.mark.parametrize(
    ("suffix", "used", "every"),
    [
        ("energy[0-9]", ("86.71", "1.0000", "1.0228", "0.5542"), ("103.87", "1.0000", "1.0237", "0.5070")),
        ("energy-published", ("86.65", "1.0000", "1.0219", "0.5565"), ("103.79", "1.0000", "1.0228", "0.5092")),
    ],
)
def test_energy_delay_products(runs, suffix, used, every):
    """Of mean time and mean energy, as the thesis has it; the CPU's sums are used for both."""
    for which, printed in (("used_devices", used), ("all_devices", every)):
        products = {}
        for name in ENVIRONMENTS:
            found = energies(runs, f"{name}-{suffix if name != 'cpu' else 'energy1'}")
            joules = mean(getattr(one, which).joules for one in found)
            products[name] = mean(one.seconds for one in found) * joules
        relative = normalized(products, base="gpu1").values()
        assert (
            tuple(f"{value:.{len(text.partition('.')[2])}f}" for value, text in zip(relative, printed, strict=True))
            == printed
        )


def test_power_over_time_gives_the_energies(runs):
    (trace,) = read_power(runs / "gpu2-energy2" / POWER_FILE)
    (record,) = energies(runs, "gpu2-energy2")
    assert len(trace.seconds) == 7441
    counted = [phase == "training" for phase in trace.phases]
    assert record.seconds == 0.5 * (sum(counted) - 1)
    for device in record.devices:
        assert trace.series[device.name].joules[counted].sum() == pytest.approx(device.joules, rel=1e-12)
    assert not (runs / "cpu-energy1" / POWER_FILE).exists()


def test_the_study(runs):
    published = {
        "295x222": {72: (13894.8, 11.6), 96: (13363.7, 81.3), 128: (13457.4, 64.2)},
        "148x112": {72: (3813.1, 76.4), 96: (3688.0, 77.9), 128: (3574.4, 78.4), 160: (3537.6, 73.6),
                    192: (3502.5, 58.2), 256: (3460.5, 38.3)},
    }  # fmt: skip
    for size, batches in published.items():
        for batch, (seconds, percent) in batches.items():
            run = read_run(runs / f"size{size}-batch{batch}")
            assert round(run.record.totals.training_seconds, 1) == seconds
            last = run.epochs[-1].validation_accuracy
            assert not isinstance(last, NotRecorded) and last is not None
            assert 100 * last == pytest.approx(percent, abs=0.051)


def test_the_share_of_validation(runs):
    for share, seconds, total in ((10, (12.09, 23.66), 3574), (1, (15.38, 2.71), 1809)):
        record = read_run(runs / f"validation{share}percent").record
        spent = [getattr(record.totals, field) for field in ALL[:2]]
        assert tuple(round(one / 100, 2) for one in spent) == seconds
        assert round(sum(spent)) == total


def test_how_far_the_times_agree(tmp_path, capsys):
    assert main(["import-thesis", str(ORIGINALS), "--folder", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("67 runs of the thesis written to ")
    assert "within 0.0017 s, their means within 0.0456 s" in lines[-1]
