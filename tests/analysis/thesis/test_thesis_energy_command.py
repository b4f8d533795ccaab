"""The thesis's energies and energy-delay products by `import-thesis` and `energy`, to the digit.

Collected only where the raw files are available, see `test_thesis_energy.py`; one raw value changed changes the table.
"""

import shutil

import pytest
from made_thesis import ORIGINALS

from analysis.__main__ import main
from analysis.questions.energy.command import find
from analysis.runs.reading import load_runs

__test__ = (ORIGINALS / "Resultados_experimentos").is_dir()  # not a skip, which counts as a failure
pytestmark = pytest.mark.ci

BASE = "np 1, gpu, controller none, gpu1, imported"


def imported(thesis, runs):
    assert main(["import-thesis", str(thesis), "--folder", str(runs)]) == 0
    return find(load_runs([runs]), base=BASE)


def row_of(found, table, environment, *, published=False):
    """Return the row of an environment: its cell is identified by ranks, device and controller."""
    words = {
        "CPU": ("np 1", "cpu"), "1 GPU": ("np 1", "gpu", "none"), "1 GPU wrapped": ("np 1", "gpu", "ddp"),
        "2 GPUs": ("np 2",),
    }[environment]  # fmt: skip
    rows = [dict(zip(found.tables[table].headings, row, strict=True)) for row in found.tables[table].rows]
    (row,) = [
        row for row in rows
        if all(word in row["cell"] for word in words) and ("published" in row["cell"]) == published
    ]  # fmt: skip
    return row


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return imported(ORIGINALS, tmp_path_factory.mktemp("thesis") / "runs")


@pytest.mark.parametrize(
    ("environment", "n", "seconds", "used", "every"),
    [
        ("CPU", 1, 78773.5, "8.482e+06", "1.110e+07"),
        ("1 GPU", 3, 6594.0, "1.1685e+06", "1.277e+06"),
        ("1 GPU wrapped", 3, 6705.8, "1.1753e+06", "1.286e+06"),
        ("2 GPUs", 3, 3712.2, "1.1504e+06", "1.1504e+06"),
    ],
)
def test_energies(found, environment, n, seconds, used, every):
    row = row_of(found, 0, environment)
    assert (row["n"], round(row["seconds"], 1)) == (n, seconds)
    for heading, printed in (("J, used devices", used), ("J, all devices", every)):
        assert f"{row[heading]:.{len(printed.split('e')[0]) - 2}e}" == printed
    assert row["measured"] == "all used devices but ram"


@pytest.mark.parametrize(
    ("environment", "used", "every"),
    [
        ("CPU", "86.71", "103.87"),
        ("1 GPU", "1.0000", "1.0000"),
        ("1 GPU wrapped", "1.0228", "1.0237"),
        ("2 GPUs", "0.5542", "0.5070"),
    ],
)
def test_energy_delay_products(found, environment, used, every):
    row = row_of(found, 1, environment)
    for heading, printed in (("EDP / base, used", used), ("EDP / base, all", every)):
        assert f"{row[heading]:.{len(printed.partition('.')[2])}f}" == printed


def test_published_means_are_beside_measured_ones(found):
    row = row_of(found, 1, "2 GPUs", published=True)
    # 0.5565 with the published seconds of both; here the base's seconds are those of its traces.
    assert row["EDP / base, used"] == pytest.approx(0.5565 * 6599 / 6594.0, rel=1e-4)
    assert "np 2, imported, 0.9845 and 0.5542 times the base" in found.answer


def test_power_is_drawn_with_two_epochs_enlarged(found):
    plots = [plot for plot in found.plots if plot.name.startswith("energy-power")]
    assert len(plots) == 3  # the CPU's trace is lost
    assert all(len(plot.figure.axes) == 2 for plot in plots)
    start, end = plots[0].figure.axes[1].get_xlim()
    assert end - start == pytest.approx(2.1 * 6574.05 / 100, rel=0.05)  # training and validation of an epoch on 1 GPU
    assert any("its source does not separate training, validation and test" in note for note in found.notes)


@pytest.mark.ci
def test_a_changed_raw_value_changes_the_table(found, tmp_path):
    changed = tmp_path / "thesis"
    shutil.copytree(ORIGINALS, changed)
    trace = sorted((changed / "Resultados_experimentos" / "Resultados_Distribuido_2GPU").glob("energia*.dat"))[0]
    lines = trace.read_text().splitlines()
    *watts, last = lines[-1].split()
    trace.write_text("\n".join([*lines[:-1], " ".join([*watts, str(float(last) + 600.0)])]) + "\n")
    before, after = (row_of(one, 0, "2 GPUs") for one in (found, imported(changed, tmp_path / "runs")))
    # Half a second of 600 W in one of three runs.
    assert after["J, used devices"] - before["J, used devices"] == pytest.approx(100.0)
