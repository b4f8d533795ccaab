"""Experiment files: the planned runs and the estimates; `tests/refusals/launch-files.toml` has what is refused."""

import itertools
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from common.config import config_from_dict, parse_command_line
from common.sites.prices import Price
from common.sites.table import Gpu, Site, read_sites
from launch.experiments.estimate import CORE_FLOPS, SHARE_OF_PEAK, START_SECONDS, estimate_run
from launch.experiments.experiment_file import shipped_experiments
from launch.experiments.plan import only_matching, read_plan
from launch.sites.site_files import read_launch_site
from launch.starting.launchers import Launcher, Slots

TWO = """
[experiment]
repeats = 3
metered = [2]
[settings]
epochs = 1
dataset = "synthetic"
[[cells]]
framework = ["torch", "keras"]
model = "mlp"
np = [1, 2]
"""


def plan_of(text, folder):
    file = folder / "made.toml"
    file.write_text(text)
    return read_plan(str(file), runs_folder=folder / "runs")


def test_a_grid_is_the_product_of_its_axes_round_by_round(tmp_path):
    plan = plan_of(TWO, tmp_path)
    cells = ["torch-mlp-np1", "torch-mlp-np2", "keras-mlp-np1", "keras-mlp-np2"]
    assert [cell.name for cell in plan.cells] == cells
    assert [run.name for run in plan.runs] == [f"{cell}-r{repeat}" for repeat in (1, 2, 3) for cell in cells]
    assert [run.seed for run in plan.runs if run.cell.name == cells[0]] == [1, 2, 3]
    assert [run.repeat for run in plan.runs if run.metered] == [2] * 4
    assert plan.folder == tmp_path / "runs" / "made"
    part = only_matching(plan, ["*-np1", "keras-mlp-np2"])
    assert ([cell.name for cell in part.cells], len(part.runs)) == ([cells[0], cells[2], cells[3]], 9)


def test_commands_as_one_would_type_them(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    plan = plan_of(
        '[[cells]]\nframework = "keras"\nmodel = "mlp"\nnp = 2\ncontroller = "gloo"\ndropout = false\nseed = 7\n'
        "image_size = [4, 5]\nglobal_batch_size = 256\n"
        '[[cells]]\nframework = "torch"\nlauncher = "python"\nrecipe = "notebook-mnist"\nmetered = [1]\n', tmp_path
    )  # fmt: skip
    places = ["--runs-folder", str(plan.folder), "--name"]
    assert plan.command(plan.runs[0]) == [
        "horovodrun", "-np", "2", "--gloo", "python", "keras_impl/train.py", "--model", "mlp", "--no-dropout",
        "--seed", "7", "--image-size", "4x5", "--batch-size", "128", "--seed", "7", *places, "keras-mlp-np2-r1",
    ]  # fmt: skip
    assert plan.command(plan.runs[1]) == [
        "python", "torch_impl/train.py", "--recipe", "launch/recipes/notebook-mnist.toml", "--seed", "1", "--energy",
        *places,
        "torch-cnn-np1-r1",
    ]  # fmt: skip
    config = plan.runs[0].config
    assert (config.training.batch_size, config.data.image_size, config.model.dropout) == (128, (4, 5), False)


def test_orders_and_seeds(tmp_path):
    def runs(lines):
        return plan_of(TWO.replace("repeats", f"{lines}\nrepeats"), tmp_path).runs

    def names(lines):
        return [run.name for run in runs(lines)]

    interleaved, grouped = names('order = "interleaved"'), names('order = "grouped"')
    assert grouped[:3] == ["torch-mlp-np1-r1", "torch-mlp-np1-r2", "torch-mlp-np1-r3"]
    drawn, again = names('order = "random"'), names('order = "random"\norder_seed = 1')
    other = names('order = "random"\norder_seed = 2')
    assert drawn == again != other
    assert sorted(drawn) == sorted(other) == sorted(grouped) == sorted(interleaved)
    assert drawn not in (grouped, interleaved)
    assert len({run.seed for run in runs('seeds = "same"')}) == 1


def test_pairs_and_variables_are_axes_beside_settings(tmp_path):
    cell = 'name = "small"\nframework = "torch"\nimage_size = [[4, 5], [8, 10]]\nHOROVOD_CYCLE_TIME = [0.2, 5]\n'
    plan = plan_of(f"[settings]\nOMP_NUM_THREADS = 2\n[[cells]]\n{cell}", tmp_path)
    assert [cell.name for cell in plan.cells] == [
        f"small-torch-cnn-np1-imagesize{size}-cycletime{time}" for size in ("4x5", "8x10") for time in (0.2, 5)
    ]
    assert plan.cells[-1].config.data.image_size == (8, 10)
    words = plan.command(plan.runs[1])
    assert words[:4] == ["env", "OMP_NUM_THREADS=2", "HOROVOD_CYCLE_TIME=5", "horovodrun"]
    site = read_launch_site("hosts")
    mpirun = Launcher(site=replace(site, launcher="mpirun"), hosts=[Slots("a", 1)])
    words = replace(plan, launcher=mpirun).command(plan.runs[1])
    handed_on = [after for word, after in itertools.pairwise(words) if word == "-x"]
    assert words[3] == "mpirun" and {"OMP_NUM_THREADS", "HOROVOD_CYCLE_TIME"} <= {*handed_on}


def test_onednn_of_earlier_files_is_left_to_the_framework_and_names_stay(tmp_path):
    plan = plan_of('[[cells]]\nframework = "torch"\nonednn = ["auto", "on"]\n', tmp_path)
    assert [(cell.name, cell.config.model.onednn) for cell in plan.cells] == [
        ("torch-cnn-np1-onednnauto", "framework"), ("torch-cnn-np1-onednnon", "on"),
    ]  # fmt: skip


def test_an_experiment_based_on_another(tmp_path):
    (tmp_path / "base.toml").write_text(TWO)
    changed = plan_of(f'based_on = "{tmp_path}/base.toml"\n[experiment]\nrepeats = 2\n[settings]\nepochs = 4', tmp_path)
    assert {cell.config.training.epochs for cell in changed.cells} == {4}
    assert {cell.config.data.dataset for cell in changed.cells} == {"synthetic"}
    assert (len(changed.cells), len(changed.runs), changed.protocol.metered) == (4, 8, [2])


SOURCES = ("article", "notebook", "pydtnn", "report", "thesis")


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("results", "smoke") else pytest.param(name, marks=pytest.mark.ci)
        for name in shipped_experiments()
    ],
)
def test_shipped_experiments_can_be_planned(name, tmp_path):
    plan = read_plan(name, runs_folder=tmp_path)
    needed = ("title", "question", *(("source", "deviations") if name.startswith(SOURCES) else ()))
    assert all(plan.file.about[part] for part in needed)
    runs = [run for run in plan.runs if run.repeat == 1 or (run.repeat == 2 and run.cell is plan.cells[0])]
    for run in runs[:: 1 + len(runs) // 8]:  # a large grid is a product of axes: some of its points
        config = parse_command_line(run.arguments(plan.folder), program="train.py")
        assert (config.training.seed, config.energy.energy) == (run.seed, run.metered)
        assert (config.record.name, config.record.runs_folder) == (run.name, str(plan.folder))
        assert replace(config, record=run.config.record) == run.config
        if config.data.dataset.startswith("prepared:"):
            made = [preparation.makes for preparation in plan.file.preparations]
            assert config.data.dataset.removeprefix("prepared:") in made
    assert {run.cell.keys.framework for run in plan.runs} == {"torch", "keras"}


GPU = Gpu(
    name="x", fp32_tflops=10.0, memory_gb=1, memory_bandwidth_gb_s=1, power_watts=200, energy_counter=True, source=""
)
RENTED = Site(title="x", kind="rented", source="", gpu="x", gpus=4,
              prices=[Price(date=date(2026, 1, 1), usd_per_hour=3.6, terms="", source="")])  # fmt: skip
MULTIPLY_ADDS = 784 * 192 + 192 * 10  # of an image, by mlp


def estimate(*, np, site=RENTED, gpu=GPU, data=None, **subjects):
    training = {"batch_size": 100, **subjects.pop("training", {})}
    data = {"dataset": "synthetic:1000x28x28x1x10", **(data or {})}
    settings = {"data": data, "model": {"model": "mlp"}, "training": training, **subjects}
    return estimate_run(config_from_dict(settings), np=np, site=site, gpu=gpu, earlier=[])


def test_an_estimate_by_hand():
    """Two operations each multiply-add; 3 passes to train, 1 for 166 tests; 5 ranks take 2 nodes of 4 GPUs."""
    two = {"epochs": 2}
    flops = (3 * 1000 * 2 + 166) * 2 * MULTIPLY_ADDS
    on_gpus = estimate(np=5, training=two)
    seconds = START_SECONDS + flops / (5 * 10e12 * SHARE_OF_PEAK)
    assert on_gpus.seconds == pytest.approx(seconds)
    assert on_gpus.joules == pytest.approx(seconds * 5 * 200)
    assert on_gpus.usd == pytest.approx(2 * seconds / 1000)
    assert on_gpus.basis == "rough"
    long_ago = replace(RENTED, prices=[replace(RENTED.prices[0], date=date(2020, 1, 1))])
    assert estimate(np=5, site=long_ago, training=two).old_price
    alone = estimate(np=1, site=read_sites()["local"], gpu=None, training=two)
    assert alone.seconds == pytest.approx(START_SECONDS + flops / CORE_FLOPS)
    assert (alone.joules, alone.usd) == (None, 0.0)
    cut = estimate(np=1, gpu=None, training={**two, "max_steps": 5})
    assert cut.seconds == pytest.approx(START_SECONDS + (3 * 500 + 166) * 2 * MULTIPLY_ADDS / CORE_FLOPS)
    energy = {"energy": True, "idle_seconds": 7.0}
    replicated = {"epochs": 4, "validate_every": 2, "validation": "replicated"}
    metered = estimate(np=2, data={"validation_share": 0.2}, energy=energy, training=replicated)
    passes = 3 * 800 * 4 + 200 * 2 * 2 + 166
    rate = 2 * 10e12 * SHARE_OF_PEAK
    assert metered.seconds == pytest.approx(START_SECONDS + 14 + passes * 2 * MULTIPLY_ADDS / rate)
    unknown = estimate(np=1, data={"dataset": "images:/somewhere"})
    assert (unknown.seconds, unknown.basis, unknown.joules, unknown.usd) == (None, "not known", None, None)
