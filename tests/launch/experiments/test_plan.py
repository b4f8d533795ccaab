"""Experiment files: the planned runs, what is refused, and the estimates."""

import itertools
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from common.config import Config, EnergyConfig, parse_command_line
from common.errors import UserError
from common.sites.prices import Price
from common.sites.table import Gpu, Site, read_sites
from launch.experiments.estimate import CORE_FLOPS, SHARE_OF_PEAK, START_SECONDS, estimate_run
from launch.experiments.experiment_file import EXPERIMENTS, shipped_experiments
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
        "--seed", "7", "--image-size", "4", "5", "--batch-size", "128", "--seed", "7", *places, "keras-mlp-np2-r1",
    ]  # fmt: skip
    assert plan.command(plan.runs[1]) == [
        "python", "torch_impl/train.py", "--recipe", "launch/recipes/notebook-mnist.toml", "--seed", "1", "--energy",
        *places,
        "torch-cnn-np1-r1",
    ]  # fmt: skip
    config = plan.runs[0].config
    assert (config.training.batch_size, config.data.image_size, config.model.dropout) == (128, (4, 5), False)


def test_orders(tmp_path):
    def names(order):
        return [run.name for run in plan_of(TWO.replace("repeats", f"{order}\nrepeats"), tmp_path).runs]

    interleaved, grouped = names('order = "interleaved"'), names('order = "grouped"')
    assert grouped[:3] == ["torch-mlp-np1-r1", "torch-mlp-np1-r2", "torch-mlp-np1-r3"]
    drawn, again = names('order = "random"'), names('order = "random"\norder_seed = 1')
    other = names('order = "random"\norder_seed = 2')
    assert drawn == again != other
    assert sorted(drawn) == sorted(other) == sorted(grouped) == sorted(interleaved)
    assert drawn not in (grouped, interleaved)


def test_one_seed_for_all_repeats(tmp_path):
    plan = plan_of(TWO.replace("repeats", 'seeds = "same"\nrepeats').replace("epochs", "seed = 5\nepochs"), tmp_path)
    assert {run.seed for run in plan.runs} == {5}


def test_an_axis_of_pairs_and_names_of_variants(tmp_path):
    plan = plan_of(
        '[[cells]]\nname = "small"\nframework = "torch"\nimage_size = [[4, 5], [8, 10]]\nlearning_rate = [0.1, 0.2]\n',
        tmp_path,
    )
    assert [cell.name for cell in plan.cells] == [
        f"small-torch-cnn-np1-imagesize{size}-learningrate{rate}" for size in ("4x5", "8x10") for rate in (0.1, 0.2)
    ]
    assert plan.cells[-1].config.data.image_size == (8, 10)


def test_variables_are_axes_beside_settings(tmp_path):
    plan = plan_of(
        '[settings]\nOMP_NUM_THREADS = 2\n[[cells]]\nframework = "torch"\nHOROVOD_CYCLE_TIME = [0.2, 5]\n', tmp_path
    )
    assert [cell.name for cell in plan.cells] == [f"torch-cnn-np1-cycletime{time}" for time in (0.2, 5)]
    assert [cell.variables["HOROVOD_CYCLE_TIME"] for cell in plan.cells] == ["0.2", "5"]
    words = plan.command(plan.runs[1])
    assert words[:4] == ["env", "OMP_NUM_THREADS=2", "HOROVOD_CYCLE_TIME=5", "horovodrun"]
    site = read_launch_site("hosts")
    mpirun = Launcher(site=replace(site, launcher="mpirun"), hosts=[Slots("a", 1)])
    words = replace(plan, launcher=mpirun).command(plan.runs[1])
    handed_on = [after for word, after in itertools.pairwise(words) if word == "-x"]
    assert words[3] == "mpirun" and {"OMP_NUM_THREADS", "HOROVOD_CYCLE_TIME"} <= {*handed_on}


def test_an_experiment_based_on_another(tmp_path):
    (tmp_path / "base.toml").write_text(TWO)
    changed = plan_of(f'based_on = "{tmp_path}/base.toml"\n[experiment]\nrepeats = 2\n[settings]\nepochs = 4', tmp_path)
    assert {cell.config.training.epochs for cell in changed.cells} == {4}
    assert {cell.config.data.dataset for cell in changed.cells} == {"synthetic"}
    assert (len(changed.cells), len(changed.runs), changed.protocol.metered) == (4, 8, [2])


def test_a_part_of_an_experiment(tmp_path):
    plan = only_matching(plan_of(TWO, tmp_path), ["*-np1", "keras-mlp-np2"])
    assert [cell.name for cell in plan.cells] == ["torch-mlp-np1", "keras-mlp-np1", "keras-mlp-np2"]
    assert len(plan.runs) == 9
    with pytest.raises(UserError, match=r"no cell has this name. Received: --only \*-np3. Choose from: torch-mlp-np1"):
        only_matching(plan, ["*-np1", "*-np3"])


CELL = '[[cells]]\nframework = "torch"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "made.toml is not a valid experiment: cells: Field required"),
        ("[[cells]\n", "the experiment is not TOML"),
        ("[cell]\n" + CELL, "made.toml is not a valid experiment: cell: Unexpected keyword argument"),
        ("[experiment]\nrepeat = 3\n" + CELL, r"experiment.repeat: .*Received: 3"),
        ('[experiment]\nrepeats = "3"\n' + CELL, r"experiment.repeats: .*Received: '3'"),
        ("[experiment]\nrepeats = 0\n" + CELL, r"experiment.repeats: .* greater than or equal to 1. Received: 0"),
        ("[experiment]\nmetered = [2]\n" + CELL, r"metered repeats beyond its 1. Received: \[2\]"),
        (
            "[experiment]\nlimit_minutes = 0.0\n" + CELL,
            r"experiment.limit_minutes: .* greater than 0. Received: 0.0",
        ),
        ("[experiment]\ncool_down_seconds = -1.0\n" + CELL, r"experiment.cool_down_seconds: .* Received: -1.0"),
        ('[experiment]\norder = "any"\n' + CELL, r"experiment.order: .*Received: 'any'"),
        ("[settings]\nepoch = 3\n" + CELL, r"`epoch` in \[settings\], which is not a setting"),
        (CELL + 'resume = "x"\n', r"`resume` in \[\[cells\]\] number 1, which the experiment sets itself"),
        (CELL + "energy = true\n", "`energy` in .*, which the experiment sets itself"),
        (CELL + "elastic = true\n", "`elastic` in .*, whose ranks `launch train --elastic` starts"),
        ("[[cells]]\nnp = 2\n", r"valid experiment: framework: Field required"),
        ('[[cells]]\nframework = "jax"\n', r"valid experiment: framework: .*'torch' or 'keras'. Received: 'jax'"),
        (CELL + "PATH = 3\n", "`PATH` in .*, which is no variable that cells may set. .* Use HOROVOD_CYCLE_TIME, "),
        (CELL + "OMP_NUM_THREADS = true\n", "a variable that is neither text nor a number, `OMP_NUM_THREADS`"),
        (CELL + "np = 0\n", r"valid experiment: np: .* Received: 0"),
        (CELL + 'np = "2"\n', r"valid experiment: np: .* Received: '2'"),
        (CELL + "repeats = 0\n", r"valid experiment: repeats: .* Received: 0"),
        (CELL + "metered = [2]\n", r"metered repeats beyond its 1. Received: \[2\]"),
        (CELL + 'metered = "1"\n', r"valid experiment: metered: .* Received: '1'"),
        (CELL + 'launcher = "srun"\n', r"valid experiment: launcher: .*'horovodrun' or 'python'. Received: 'srun'"),
        (CELL + 'controller = "nccl"\n', r"valid experiment: controller: .* Received: 'nccl'"),
        (CELL + 'launcher = "python"\nnp = 2\n', "a cell that needs a launcher and has none. Received: np 2"),
        (CELL + "model = []\n", r"an axis without values, `model`"),
        (CELL + 'model = "vgg"\n', "an invalid cell: unknown model. Received: --model vgg"),
        (CELL + "batch_size = 0\n", "an invalid cell: --batch-size is out of range"),
        (CELL + 'recipe = "none"\n', "cannot read the recipe"),
        (CELL + "np = 2\nglobal_batch_size = 3\n", "a global batch that its ranks cannot share. Received: 3 on 2"),
        (CELL + "batch_size = 1\nglobal_batch_size = 2\n", "two batch sizes"),
        (CELL + CELL, "two cells of one name. Received: torch-cnn-np1"),
        ("settings = 3\n" + CELL, "settings: Input should be an object. Received: 3"),
        ('[[prepare]]\ncommand = ["a"]\n' + CELL, "prepare.0.makes: "),
        ("based_on = 3\n", "a based_on that is not a name. Received: 3"),
        ('based_on = "smoke"\nsettings = 3\n', "settings: Input should be an object. Received: 3"),
        ('based_on = "nothing.toml"\n', "cannot read the experiment: No such file or directory"),
    ],
)
def test_what_an_experiment_file_may_not_contain(text, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        plan_of(text, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_lists_the_shipped_ones(tmp_path):
    with pytest.raises(UserError, match=r"Give a TOML file, or one of aa-test, averaging, communication"):
        read_plan("nothing", runs_folder=tmp_path)


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
    assert plan.file.about["title"]
    assert plan.file.about["question"]
    if name.startswith(SOURCES):
        assert plan.file.about["source"]
        assert plan.file.about["deviations"]
    runs = [run for run in plan.runs if run.repeat == 1 or (run.repeat == 2 and run.cell is plan.cells[0])]
    for run in runs[:: 1 + len(runs) // 8]:  # a large grid is a product of axes: some of its points
        config = parse_command_line(run.arguments(plan.folder), program="train.py")
        assert (config.training.seed, config.energy.energy) == (run.seed, run.metered)
        assert (config.record.name, config.record.runs_folder) == (run.name, str(plan.folder))
        assert replace(config, record=run.config.record) == run.config
        if config.data.dataset.startswith("prepared:"):
            made = [preparation.makes for preparation in plan.file.preparations]
            assert config.data.dataset.removeprefix("prepared:") in made
    frameworks = {run.cell.keys.framework for run in plan.runs}
    assert frameworks == {"torch", "keras"}


def test_the_study_of_the_thesis_is_run_as_it_was():
    """Energy, 5 timed, energy, 5 timed, energy, a minute between; batch 128, MSE of softmax, 100 epochs."""
    plan = read_plan("thesis-resnet34-as-published", runs_folder=Path("runs"))
    one_gpu = [run for run in plan.runs if run.cell.name == "1gpu-torch-resnet34-np1"]
    assert [run.metered for run in one_gpu] == [True, *[False] * 5, True, *[False] * 5, True]
    assert plan.protocol.cool_down_seconds == 60
    config = one_gpu[0].config
    assert (config.training.batch_size, config.training.epochs, config.optimizer.loss) == (128, 100, "mse")
    assert (config.optimizer.learning_rate, config.optimizer.momentum) == (0.05, 0)
    assert (config.training.validation, config.training.eval_batch_size) == ("replicated", 1)
    corrected = read_plan("thesis-resnet34-corrected", runs_folder=Path("runs"))
    assert {run.cell.name for run in corrected.runs} == {run.cell.name for run in plan.runs}
    changed = corrected.cells[0].config.training
    assert (changed.validation, changed.eval_batch_size) == ("sharded", 128)


def test_shipped_files_repeat_no_setting_of_their_base():
    """What is based on another file repeats no setting of it."""
    for file in EXPERIMENTS.glob("*.toml"):
        content = tomllib.loads(file.read_text())
        if "based_on" in content:
            base = tomllib.loads((EXPERIMENTS / f"{content['based_on']}.toml").read_text())
            for table in ("settings", "experiment"):
                same = content.get(table, {}).items() & base.get(table, {}).items()
                assert not same, file.name


GPU = Gpu(
    name="x", fp32_tflops=10.0, memory_gb=1, memory_bandwidth_gb_s=1, power_watts=200, energy_counter=True, source=""
)
RENTED = Site(title="x", kind="rented", source="", gpu="x", gpus=4,
              prices=[Price(date=date(2026, 1, 1), usd_per_hour=3.6, terms="", source="")])  # fmt: skip


def config_of(**training):
    config = Config()
    return replace(
        config,
        data=replace(config.data, dataset="synthetic:1000x28x28x1x10"),
        model=replace(config.model, model="mlp"),
        training=replace(config.training, **training),
    )


def test_an_estimate_by_hand():
    """mlp: 784 x 192 + 192 x 10 multiply-adds an image, two operations each; 3 passes to train, 1 for 166 tests."""
    flops = (3 * 1000 * 2 + 166) * 2 * (784 * 192 + 192 * 10)
    config = config_of(epochs=2, batch_size=100)
    on_gpus = estimate_run(config, np=5, site=RENTED, gpu=GPU, earlier=[])
    seconds = START_SECONDS + flops / (5 * 10e12 * SHARE_OF_PEAK)
    assert on_gpus.seconds == pytest.approx(seconds)
    assert on_gpus.joules == pytest.approx(seconds * 5 * 200)
    assert on_gpus.usd == pytest.approx(2 * seconds / 1000)  # 5 ranks take 2 nodes of 4 GPUs
    assert on_gpus.basis == "rough"
    long_ago = replace(RENTED, prices=[replace(RENTED.prices[0], date=date(2020, 1, 1))])
    assert estimate_run(config, np=5, site=long_ago, gpu=GPU, earlier=[]).old_price
    alone = estimate_run(config, np=1, site=read_sites()["local"], gpu=None, earlier=[])
    assert alone.seconds == pytest.approx(START_SECONDS + flops / CORE_FLOPS)
    assert (alone.joules, alone.usd) == (None, 0.0)
    cut = estimate_run(config_of(epochs=2, batch_size=100, max_steps=5), np=1, site=RENTED, gpu=None, earlier=[])
    multiply_adds = 784 * 192 + 192 * 10
    assert cut.seconds == pytest.approx(START_SECONDS + (3 * 500 + 166) * 2 * multiply_adds / CORE_FLOPS)
    config = replace(config_of(epochs=4, batch_size=100, validate_every=2, validation="replicated"),
                     energy=EnergyConfig(energy=True, idle_seconds=7.0))  # fmt: skip
    config = replace(config, data=replace(config.data, validation_share=0.2))
    metered = estimate_run(config, np=2, site=RENTED, gpu=GPU, earlier=[])
    passes = 3 * 800 * 4 + 200 * 2 * 2 + 166
    rate = 2 * 10e12 * SHARE_OF_PEAK
    assert metered.seconds == pytest.approx(START_SECONDS + 14 + passes * 2 * multiply_adds / rate)


def test_unknown_sizes_give_no_estimate():
    config = replace(Config(), data=replace(Config().data, dataset="images:/somewhere"))
    unknown = estimate_run(config, np=1, site=RENTED, gpu=GPU, earlier=[])
    assert (unknown.seconds, unknown.basis, unknown.joules, unknown.usd) == (None, "not known", None, None)
