"""The raw files of the thesis as run folders: synthetic ones. `test_numbers.py` reads the originals."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from made_thesis import HYBRID, RESULTS, STUDY, make_thesis

from analysis.__main__ import main
from analysis.thesis import import_command as import_thesis
from analysis.thesis.records import RAM_REASON, SUM_REASON
from common.run_folder.power_file import POWER_FILE, read_power
from common.run_folder.records import NotRecorded, Totals, read_run

GPU1, GPU2 = RESULTS / "Resultados_1GPU", RESULTS / "Resultados_Distribuido_2GPU"
CPU, BATCH_64 = RESULTS / "Resultados_CPU", RESULTS / "Resultados_distribuido_2GPU_64"


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The synthetic files, imported once."""
    runs = tmp_path_factory.mktemp("imported") / "runs"
    assert main(["import-thesis", str(make_thesis(runs.parent / "thesis")), "--folder", str(runs)]) == 0
    return runs


def test_every_run_has_a_folder_that_can_be_read(imported):
    environments = ["gpu1", "gpu1-wrapped", "gpu2"]
    assert {folder.name for folder in imported.iterdir()} == {
        "cpu-r1", "cpu2-r1", "cpu-energy1", "gpu2-batch64-r1", "gpu2-batch64-r2", "hybrid-r1", "hybrid-gpu1-r1",
        "validation10percent", "validation1percent",
        *(f"{name}-r{number}" for name in environments for number in (1, 2)),
        *(f"{name}-energy{number}" for name in environments for number in (1, 2, 3)),
        *(f"{name}-energy-published" for name in environments),
        *(f"size295x222-batch{batch}" for batch in (72, 96, 128)),
        *(f"size148x112-batch{batch}" for batch in (72, 96, 128, 160, 192, 256)),
        *(f"table31-{framework}-{device}" for framework in ("keras", "torch") for device in ("cpu", "gpu")),
    }  # fmt: skip
    for folder in imported.iterdir():
        run = read_run(folder)
        assert run.state == "finished"
        assert run.record.origin == ("published" if folder.name.endswith("published") else "imported")
        assert run.record.site == "thesis-machine"
        for field in ("config", "environment", "hashes", "status", "isolation"):
            assert isinstance(getattr(run.record, field), NotRecorded)
        with_trace = "energy" in folder.name and folder.name != "cpu-energy1" and run.record.origin == "imported"
        assert sorted(file.name for file in folder.iterdir()) == [
            "epochs.jsonl",
            *["power.csv"] * with_trace,
            "run.json",
        ]


def test_a_timed_run(imported):
    run = read_run(imported / "gpu1-r2")
    data = run.record.data
    assert run.record.totals == Totals(
        epochs=100,
        steps=6000,
        startup_seconds=NotRecorded("not in the files of the thesis"),
        training_seconds=6052.0,  # 100 x 60.5 + 2
        validation_seconds=525.0,
        test_seconds=34.5,
        images_per_second=765_000 / 6052,
        test_loss=0.04,
        test_accuracy=0.75,
        data_wait_seconds=NotRecorded("not in the files of the thesis"),
        first_epoch_seconds=62.5,
        steady_images_per_second=7650 / 60.5,
        queue_seconds=NotRecorded("not in the files of the thesis"),
        launch_seconds=NotRecorded("not in the files of the thesis"),
    )
    assert [epoch.validation_accuracy for epoch in run.epochs] == [number / 200 for number in range(1, 101)]
    assert [epoch.training_seconds for epoch in run.epochs] == [62.5] + [60.5] * 99
    assert {epoch.validation_seconds for epoch in run.epochs} == {5.25}
    assert run.epochs[1].images_per_second == 7650 / 60.5
    assert (data.global_batch_size, data.steps_per_epoch, data.image_shape) == (128, 60, (148, 197, 1))
    assert (data.training_samples, data.validation_samples, data.test_samples) == (7650, 180, 1170)
    model = run.record.model
    assert (model.name, model.outputs, model.parameters) == ("resnet34", 9, 21_283_017)
    assert round(model.multiply_adds_per_image, -6) == 2_306_000_000
    assert run.record.energy is None


@pytest.mark.parametrize(
    ("name", "devices", "controller", "batch", "steps"),
    [
        ("cpu-r1", ["cpu"], "none", 128, 60),
        ("gpu1-r1", ["cuda:0"], "none", 128, 60),
        ("gpu1-wrapped-energy1", ["cuda:0"], "ddp", 128, 60),
        ("gpu2-r1", ["cuda:0", "cuda:1"], "ddp", 256, 30),
        ("gpu2-batch64-r1", ["cuda:0", "cuda:1"], "ddp", 128, 60),
        ("hybrid-r1", ["cuda:0", "cuda:1", "cpu"], "gloo", 266, 30),
    ],
)
def test_processes_and_batches(imported, name, devices, controller, batch, steps):
    run = read_run(imported / name)
    world, data = run.record.world, run.record.data
    assert (world.size, world.devices, world.controller) == (len(devices), devices, controller)
    assert (data.global_batch_size, data.steps_per_epoch) == (batch, steps)


@pytest.mark.parametrize("name", ["cpu-r1", "gpu2-batch64-r1", "gpu2-batch64-r2"])
def test_decimal_commas(imported, name):
    accuracies = [epoch.validation_accuracy for epoch in read_run(imported / name).epochs]
    assert accuracies == [number / 200 for number in range(1, 101)]


def test_the_second_cpu_run_comes_from_its_own_folder_alone(imported):
    assert read_run(imported / "cpu-r1").record.totals.training_seconds == 60_002
    assert read_run(imported / "cpu2-r1").record.totals.training_seconds == 50_002


def test_seconds_in_a_row(imported):
    run = read_run(imported / "hybrid-r1")
    assert [epoch.training_seconds for epoch in run.epochs] == [47.0] + [45.0] * 99
    assert run.record.totals.test_seconds == 34.5


def test_a_metered_run(imported):
    """Three samples count: e = 0.5 s x their sum, T = 0.5 s x (3 - 1); RAM is in no sum."""
    run = read_run(imported / "gpu1-energy2")
    record = run.record.energy
    assert isinstance(run.record.totals, NotRecorded)
    assert run.epochs == []
    assert (record.interval_seconds, record.seconds, record.seconds_by_phase) == (
        0.5, 1.0, {"startup": 2.0, "training": 1.0}
    )  # fmt: skip
    assert {device.name: device.joules for device in record.devices} == {
        "cpu0": 30, "ram0": 1.5, "cpu1": 15, "ram1": 3, "gpu0": 165, "gpu1": 25.5
    }  # fmt: skip
    assert {device.name for device in record.devices if device.used} == {"cpu0", "cpu1", "gpu0"}
    assert {device.name: device.reason for device in record.devices if device.reason} == dict.fromkeys(
        ("ram0", "ram1"), RAM_REASON
    )
    assert (record.used_devices.joules, record.all_devices.joules) == (210, 235.5)
    assert (record.used_devices.edp_joule_seconds, record.all_devices.ed2p_joule_square_seconds) == (210, 235.5)
    assert not record.used_devices.complete


def test_its_power_over_time(imported):
    (trace,) = read_power(imported / "gpu1-energy1" / POWER_FILE)
    assert list(trace.series) == ["cpu0", "ram0", "cpu1", "ram1", "gpu0", "gpu1"]
    assert trace.seconds.tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert trace.phases == ["startup"] * 4 + ["training"] * 3
    assert trace.series["gpu0"].watts.tolist() == [47, 16, 16, 90, 100, 120, 110]
    assert trace.series["gpu0"].joules.tolist() == [0, 8, 8, 45, 50, 60, 55]
    record = read_run(imported / "gpu1-energy1").record.energy
    for device in record.devices:
        series = trace.series[device.name]
        assert device.joules_by_phase == {"startup": series.joules[:4].sum(), "training": series.joules[4:].sum()}


def test_sums_without_samples(imported):
    of_cpu, published = (read_run(imported / name).record.energy for name in ("cpu-energy1", "gpu2-energy-published"))
    assert (of_cpu.seconds, published.seconds) == (100, 9)
    assert (of_cpu.used_devices.joules, of_cpu.all_devices.joules) == (45, 235.5)
    assert published.used_devices.edp_joule_seconds == 9 * 235.5
    assert [device.reason for device in of_cpu.devices] == [SUM_REASON, RAM_REASON] * 2 + [SUM_REASON] * 2
    assert of_cpu.seconds_by_phase == {"training": 100}


def test_the_study(imported):
    run = read_run(imported / "size295x222-batch96")
    data = run.record.data
    assert (data.image_shape, data.global_batch_size, data.steps_per_epoch) == ((222, 295, 1), 96, 66)
    assert run.record.totals.training_seconds == 2001
    assert run.record.totals.validation_seconds == NotRecorded("counted within training_seconds")
    assert isinstance(run.record.totals.test_accuracy, NotRecorded)
    accuracies = [epoch.validation_accuracy for epoch in run.epochs]
    assert accuracies == pytest.approx([(epoch / 2 + 1) / 100 for epoch in range(100)])
    assert isinstance(run.epochs[0].training_seconds, NotRecorded)
    smaller = read_run(imported / "size148x112-batch256")
    assert (smaller.record.data.image_shape, smaller.record.totals.training_seconds) == ((112, 148, 1), 6003)


def test_the_share_of_validation(imported):
    found = [read_run(imported / f"validation{share}percent").record.totals for share in (10, 1)]
    assert [(one.training_seconds, one.validation_seconds) for one in found] == [(1250, 2325), (1550, 275)]


def test_table_3_1(imported):
    rows = []
    for folder in sorted(imported.glob("table31-*")):
        run = read_run(folder)
        assert (run.record.model.name, run.record.model.parameters) == ("mlp", 152_650)
        record, totals = run.record, run.record.totals
        rows.append((record.framework, *record.world.devices, totals.test_accuracy, totals.training_seconds))
    assert rows == [
        ("keras", "cpu", 0.95, 9.4),
        ("keras", "cuda:0", 0.96, 6.13),
        ("torch", "cpu", 0.9, 14),
        ("torch", "cuda:0", 0.9, 19.5),
    ]


def test_two_runs_are_compared_though_their_losses_are_not_recorded(imported, capsys):
    assert main(["parity", *(str(imported / name) for name in ("gpu1-r1", "gpu1-r2")), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"][0]["rows"]
    assert any("not recorded: not in the files of the thesis" in row.values() for row in rows)


def test_what_is_printed(tmp_path, capsys):
    assert main(["import-thesis", str(make_thesis(tmp_path / "thesis")), "--folder", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"40 runs of the thesis written to {tmp_path / 'runs'}"
    counts = {tuple(line.rsplit(maxsplit=1)) for line in lines[1:-2]}
    assert {("gpu1", "2"), ("gpu1, metered", "3"), ("cpu, metered, sums only", "1"), ("table 3.1", "4")} < counts
    assert lines[-2] == "missing in its files: the CPU's power over time; cpu-energy1 has its sums"
    assert "within 0.0005 s, their means within 0.0400 s" in lines[-1]


def edit(file, change):
    with file.open(newline="") as opened:
        text = opened.read()
    changed = change(text)
    assert changed != text
    file.write_text(changed, newline="")


def test_a_changed_raw_value_changes_the_run(tmp_path, capsys):
    """Also where it contradicts another file, which is reported."""
    thesis, runs = make_thesis(tmp_path / "thesis"), tmp_path / "runs"
    edit(thesis / GPU1 / "Entrenamientos.csv", lambda text: text.replace("60.500000", "61.500000", 1))
    edit(thesis / GPU1 / "energia0.dat", lambda text: text.replace("120.0", "121.0"))
    assert main(["import-thesis", str(thesis), "--folder", str(runs)]) == 0
    assert read_run(runs / "gpu1-r2").record.totals.training_seconds == 6053
    assert read_run(runs / "gpu1-energy1").record.energy.used_devices.joules == 210.5
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "note: gpu1-r2: its total time is -0.9995 s from the sum over its epochs"


BAD = [
    ("a header", GPU1 / "General.csv", lambda text: text.replace("Error", "Fallo"), "the header ,Tiempo"),
    ("no runs", GPU1 / "General.csv", lambda text: text.splitlines()[0], "no rows"),
    ("a column too few", GPU1 / "General.csv", lambda text: text.replace(",34.5", ""), "2 rows of 4 numbers"),
    ("percent", GPU1 / "General.csv", lambda text: text.replace("0.75", "75.0"), "an accuracy of 7500 %"),
    ("a run less", GPU2 / "General.csv", lambda text: "\n".join(text.splitlines()[:-1]), "rows of 2 numbers"),
    ("NaN", GPU1 / "Entrenamientos.csv", lambda text: text.replace("60.500000", "nan", 1), "not finite"),
    ("negative", GPU1 / "Validaciones.csv", lambda text: text.replace("5.25", "-5.25", 1), "or negative"),
    ("no time", CPU / "Validaciones.csv", lambda text: text.replace("5.25", "0.00", 1), "an epoch of 0 s"),
    ("a word", CPU / "Validaciones.csv", lambda text: text.replace("5.25", "five", 1), "'five0000'"),
    ("an epoch less", CPU / "Precisiones.csv", lambda text: text[text.index("\n") + 1 :], "99 rows of 1 numbers"),
    ("an epoch less", HYBRID / "R_Hibrido/Validaciones.csv", lambda text: text[text.index(",") + 1 :], "of 99 numbers"),
    ("a column", BATCH_64 / "Precisiones.csv", lambda text: text.replace("\r", ";0,5\r"), "100 rows of 3 numbers"),
    ("above one", BATCH_64 / "Precisiones.csv", lambda text: text.replace("0,5", "1,5"), "an accuracy of 150 %"),
    ("nothing", CPU / "Entrenamientos.csv", lambda text: "\n", "an empty file"),
    ("no JSON", CPU / "Parametros.json", lambda text: text[:-3], "Invalid JSON"),
    ("a list", CPU / "Parametros.json", lambda text: "[]", "Input should be an object"),
    ("no size", CPU / "Parametros.json", lambda text: text.replace("Tam. test", "Test"), "Field required"),
    ("a device", CPU / "Parametros.json", lambda text: text.replace('"cpu"', '"tpu"'), "Dispositivo.literal"),
    ("a size of 0", CPU / "Parametros.json", lambda text: text.replace("7650", "0"), "greater than 0"),
    ("more keys", CPU / "Parametros.json", lambda text: text.replace("{", '{"x": 1, '), "Extra inputs"),
    ("a header", GPU1 / "energia1.dat", lambda text: text.replace("nvd", "gpu"), "the header core-0-pkg"),
    ("at rest", GPU1 / "energia2.dat", lambda text: "\n".join(text.splitlines()[:4]), "never exceeds 20 W"),
    ("two rows", CPU / "consumos.dat", lambda text: text + "1,2,3,4,5,6,7\r\n", "2 rows of 7 numbers"),
    ("a batch", STUDY / "Precisiones/148x112.csv", lambda text: text.replace("160", "161"), "the header 72,96,128,161"),
    ("no percent", STUDY / "Precisiones/295x222.csv", lambda text: text.replace("0.50%", "0.50"), "numbers without %"),
    ("a number", STUDY / "Tiempos/148x112.csv", lambda text: text.replace(",3,", ",7,"), "runs numbered"),
    ("a time less", STUDY / "Tiempos/295x222.csv", lambda text: text.replace(",3,3001.5", ""), "of 4 numbers"),
    ("a row less", STUDY / "Tiempos/Tiempos_conjuntos.csv", lambda text: text.splitlines()[0], "not 2 of 2"),
    ("a row", HYBRID / "resultados_previos.csv", lambda text: text.replace("Pytorch GPU", "Torch"), "Torch, 90"),
    ("no unit", HYBRID / "resultados_previos.csv", lambda text: text.replace('14"', "14"), "Pytorch, 90"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "change", "received"), [one[1:] for one in BAD], ids=[f"{what} in {file.name}" for what, file, *_ in BAD]
)
def test_what_is_not_as_expected_is_one_line_and_nothing_is_written(tmp_path, capsys, file, change, received):
    thesis, runs = make_thesis(tmp_path / "thesis"), tmp_path / "runs"
    edit(thesis / file, change)
    assert main(["import-thesis", str(thesis), "--folder", str(runs)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    # A count that General.csv has alone is found in the next table of its folder.
    assert str(thesis / file.parent) in line
    assert received in line
    assert ". Received: " in line
    assert line.endswith(". Name an original file")
    assert not runs.exists()


@pytest.mark.parametrize(
    "file",
    [CPU / "consumos.dat", GPU1 / "energia2.dat", GPU2 / "consumos_medios.dat", GPU2 / "General.csv",
     HYBRID / "R_1GPU/Parametros.json", STUDY / "Tiempos/tiempos_overview.csv", HYBRID / "resultados_previos.csv"],
    ids=lambda file: file.name,
)  # fmt: skip
def test_a_missing_file_is_named(tmp_path, capsys, file):
    thesis = make_thesis(tmp_path / "thesis")
    (thesis / file).unlink()
    assert main(["import-thesis", str(thesis), "--folder", str(tmp_path / "runs")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"No such file or directory. Received: {thesis / file}. Name an original file" in line


def test_other_runs_stay_beside_the_imported_ones(tmp_path):
    thesis, runs = make_thesis(tmp_path / "thesis"), tmp_path / "runs"
    (runs / "mine").mkdir(parents=True)
    assert main(["import-thesis", str(thesis), "--folder", str(runs)]) == 0
    assert len(list(runs.iterdir())) == 41


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("step", ["write_power", "rename"])
def test_a_full_disk_leaves_nothing(tmp_path, capsys, monkeypatch, step, there):
    thesis, runs = make_thesis(tmp_path / "thesis"), tmp_path / "runs"
    if there:
        runs.mkdir()
    rename = Path.rename

    def full(path, *arguments):
        if step == "rename" and path.name != "gpu2-energy1":
            return rename(path, arguments[0])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    if step == "rename":
        monkeypatch.setattr(Path, "rename", full)
    else:
        monkeypatch.setattr(import_thesis, "write_power", full)
    assert main(["import-thesis", str(thesis), "--folder", str(runs)]) == 2
    assert "writing the imported runs failed: No space left on device" in capsys.readouterr().err
    assert list(runs.iterdir()) == [] if there else not runs.exists()


def test_numbers_keep_all_their_digits(imported, tmp_path):
    thesis, runs = make_thesis(tmp_path / "thesis"), tmp_path / "runs"
    edit(thesis / GPU1 / "General.csv", lambda text: text.replace("34.5", "33.66019892692566", 1))
    assert main(["import-thesis", str(thesis), "--folder", str(runs)]) == 0
    assert read_run(runs / "gpu1-r1").record.totals.test_seconds == np.float64("33.66019892692566")
