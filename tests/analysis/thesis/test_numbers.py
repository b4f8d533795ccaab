"""Every number of the thesis that its raw files give, by all commands: `numbers.csv` has them, and what was published.

In every clone, from files made so that they have the same means, extremes and sums; and from the raw files themselves
where they are (`THESIS_DATA` or ../shared/reference/thesis), to which the last tests belong.
"""

from statistics import fmean

import pytest
from analysis_builders import rows_of
from made_thesis import ORIGINALS, make_thesis, read_numbers

from analysis.__main__ import main
from analysis.questions.energy.command import find as find_energy
from analysis.questions.hyperparameters.command import find as find_hyperparameters
from analysis.questions.scaling.command import find as find_scaling
from analysis.runs.published import read_published
from analysis.runs.reading import load_runs
from analysis.thesis.command import find
from analysis.thesis.comparison import ENVIRONMENTS
from common.measurement.energy import energy_delay
from common.run_folder.power_file import POWER_FILE, read_power
from common.run_folder.records import read_run

RAW = (pytest.mark.ci, pytest.mark.originals)
NUMBERS = read_numbers()
LABELS = {name: label for name, label in ENVIRONMENTS.items() if name != "gpu2-batch64"}  # those with energies
BASE = "np 1, gpu, controller none, gpu1, imported"  # of energies


@pytest.fixture(scope="module", params=["made", pytest.param("raw", marks=RAW)])
def folder(request, tmp_path_factory):
    """All runs of the thesis, imported once."""
    runs = tmp_path_factory.mktemp("thesis")
    files = ORIGINALS if request.param == "raw" else make_thesis(runs / "files", numbers="full")
    assert main(["import-thesis", str(files), "--folder", str(runs / "runs")]) == 0
    return runs / "runs"


@pytest.fixture(scope="module")
def thesis(folder):
    return load_runs([folder])


def number(of, what, *, rel=1e-9):
    return pytest.approx(NUMBERS[of, what]["value"], rel=rel)


def energies(folder, pattern):
    return [read_run(run).record.energy for run in sorted(folder.glob(pattern))]


def test_every_number_follows_and_every_difference_has_its_reason(thesis):
    compared = find(thesis)
    rows = [row for table in compared.tables for row in rows_of(table)]
    found = {(row["of"], row["what"]): row for row in rows if "what" in row}
    assert found.keys() == NUMBERS.keys()
    for key, expected in NUMBERS.items():
        row = found[key]
        assert (row["from the runs"], row["n"], row[""]) == (number(*key), expected["n"], expected["published"]), key
        assert row[""] != "differs" or not row["why"].startswith("no reason known"), key
    assert found["2 GPUs", "efficiency"]["why"] == "printed from the rounded speedup, 1.79"
    assert all(row[""] != "differs" for row in rows if "parameter" in row)
    assert compared.answer.startswith(
        "92 of 102 published values follow from the raw files to their last digit; 10 differ, all of them for a known"
    )
    assert "11.883 times as fast as CPU." in compared.answer


def test_the_products_printed_in_the_thesis_are_those_of_its_published_sums(folder):
    """The CPU's power over time is lost: its sums are both measured and published."""
    published = read_published().results
    for part, printed in (("used_devices", "edp"), ("all_devices", "edp_with_idle")):
        found = {
            name: energies(folder, "cpu-energy1" if name == "cpu" else f"{name}-energy-published")[0] for name in LABELS
        }
        products = {name: energy_delay(one.seconds, getattr(one, part).joules) for name, one in found.items()}
        for name, product in products.items():
            value = product / products["gpu1"]
            digits = getattr(published[f"thesis-{name}"], printed)
            assert value == pytest.approx(digits, abs=0.5 * 10 ** -len(str(digits).partition(".")[2])), (name, part)


def test_the_energy_command_gives_the_same_energies_and_products_and_draws_two_epochs_enlarged(thesis):
    found = find_energy(thesis, base=BASE)
    words = {"cpu": ("np 1", ", cpu"), "gpu1": ("np 1", "gpu", "none"), "gpu1-wrapped": ("np 1", "gpu", "ddp"),
             "gpu2": ("np 2",)}  # fmt: skip
    every = rows_of(found, 0) + rows_of(found, 1)
    for name, label in LABELS.items():
        rows = [row for row in every if all(word in row["cell"] for word in words[name])]
        joules, products = (row for row in rows if "published" not in row["cell"])
        assert (joules["n"], joules["seconds"]) == (1 if name == "cpu" else 3, number(label, "metered runs, s"))
        assert joules["J, used devices"] == number(label, "used devices, J")
        assert joules["J, all devices"] == number(label, "with idle devices, J")
        assert joules["measured"] == "all used devices but ram"
        # Of runs, where the thesis has those of mean time and mean energy.
        assert products["EDP / base, used"] == number(label, "EDP / that of 1 GPU", rel=1e-5)
        assert products["EDP / base, all"] == number(label, "EDP with idle devices / that of 1 GPU", rel=1e-5)
    published = rows[-1]
    # 0.5565 with the published seconds of both; here the base's seconds are those of its traces.
    assert "published" in published["cell"]
    assert published["EDP / base, used"] == pytest.approx(0.5565 * 6599 / 6594.0, rel=1e-4)
    assert "np 2, imported, 0.9845 and 0.5542 times the base" in found.answer
    plots = [plot for plot in found.plots if plot.name.startswith("energy-power")]
    assert len(plots) == 3 and all(len(plot.figure.axes) == 2 for plot in plots)  # the CPU's trace is lost
    assert any("its source does not separate training, validation and test" in note for note in found.notes)


def test_scaling_gives_the_same_speedups_over_one_gpu_and_over_the_cpu(thesis):
    rows = {row["model, data set, np"]: row for row in rows_of(find_scaling(thesis, base="gpu1-r/1"), "The same of")}
    for words, label in (("global batch 256", "2 GPUs"), ("global batch 128", "2 GPUs, batch 64")):
        (two,) = [row for name, row in rows.items() if words in name and "np 2" in name]
        assert two["total, s"] == number(label, "total, s")
        assert (two["speedup"], two["efficiency"]) == (number(label, "speedup over 1 GPU"), number(label, "efficiency"))
        assert two["speedup in training"] == number(label, "speedup of training alone over 1 GPU")
        assert two["efficiency in training"] == number(label, "efficiency of training alone")
    base, *others = rows_of(find_scaling(thesis, base="cpu-r1/1"), "The same of means")
    assert base["total, s"] == number("CPU", "total, s")
    for label in ("1 GPU, wrapped", "2 GPUs"):
        assert any(row["speedup"] == number(label, "speedup over CPU") for row in others)
    gpus = [row for row in others if ", gpu, " in row["model, data set, np"] or "np 2" in row["model, data set, np"]]
    assert gpus and not any(row["efficiency"] for row in gpus), "another machine is no scaling"


def test_hyperparameters_gives_the_same_study_of_resolution_batch_and_validation(thesis):
    found = find_hyperparameters(thesis)
    rows = [row for row in rows_of(found, "Time and validation accuracy") if row["np"] is None]
    assert len(rows) == 9
    for row in rows:
        of = f"{row['resolution']}, batch {row['batch']}"
        assert row["total, s"] == number(of, "training + validation, s")
        assert row["last accuracy, %"] == number(of, "last validation accuracy, %")
    for row in rows_of(found, "Time by the share"):
        of = f"{row['validation samples'].removeprefix('validation').removesuffix('percent')} % for validation"
        for phase in ("training", "validation"):
            assert row[f"{phase}, s/epoch"] == number(of, f"{phase} per epoch, s")
        assert row["total, s"] == number(of, "total, s")


# What only the raw files have


@pytest.mark.ci
@pytest.mark.originals
@pytest.mark.parametrize("folder", ["raw"], indirect=True)
class TestRawFiles:
    def test_every_device_has_the_published_energy(self, folder):
        for name in ("gpu1", "gpu1-wrapped", "gpu2"):
            (published,) = energies(folder, f"{name}-energy-published")
            found = energies(folder, f"{name}-energy[0-9]")
            joules = [[one.joules for one in run.devices] for run in found]
            means = [fmean(devices) for devices in zip(*joules, strict=True)]
            assert means == pytest.approx([device.joules for device in published.devices], rel=1e-12)

    def test_the_headline_is_batch_64_and_the_raw_one_is_next_to_it(self, thesis):
        found = find_scaling(thesis, base="gpu1-r/1", margin=0.025)
        row = next(row for row in rows_of(found, "Speedup at equal accuracy") if row["np"] == 2)
        assert row["by"] == "a batch of 128 (64 per rank)"
        assert row["speedup at equal accuracy"] == pytest.approx(1.58, abs=0.01)
        assert row["raw speedup"] == pytest.approx(1.79, abs=0.01)
        assert "Equal accuracy is not shown within 0.5 points." in find_scaling(thesis).answer

    def test_how_far_the_times_agree_and_how_long_a_trace_is(self, folder, tmp_path, capsys):
        assert main(["import-thesis", str(ORIGINALS), "--folder", str(tmp_path / "runs")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("67 runs of the thesis written to ")
        assert "within 0.0017 s, their means within 0.0456 s" in lines[-1]
        assert len(read_power(folder / "gpu2-energy2" / POWER_FILE)[0].seconds) == 7441
