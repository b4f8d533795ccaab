"""What prepares the current folder for a command line that `python -m launch` refuses."""

import numpy as np
from builders import make_config, make_epoch, make_record, make_status, make_task, make_world, random_weights, write_run
from made_trials import write_search_file
from safetensors.numpy import save_file

from common.run_folder.checkpoints import Checkpoint, save_checkpoint

EXPERIMENT = """
[experiment]
repeats = 6
{pause}
[settings]
framework = "torch"
model = "mlp"
dataset = "synthetic:600x8x8x1x3"
epochs = 1

[[cells]]
"""
SETTINGS_OF_OLD = """
[record]
runs_folder = "."
name = "old"
[data]
dataset = "synthetic:120x8x8x1x3"
[model]
model = "mlp"
[schedule]
lr_scaling = "none"
warmup_epochs = 0.0
[training]
epochs = 3
batch_size = 30
"""


def experiment(folder):
    (folder / "made.toml").write_text(EXPERIMENT.format(pause=""))


def experiment_with_pauses(folder):
    (folder / "made.toml").write_text(EXPERIMENT.format(pause="cool_down_seconds = 5"))


def site(folder):
    """`ours.toml`, the head of a site's file."""
    (folder / "ours.toml").write_text('[launch]\ntitle = "x"\nsource = "x"\nchecked = 2026-11-21\n')


def search_file(folder):
    write_search_file(folder)


def finished_run(folder):
    """`old`, a run of one rank of PyTorch with a checkpoint after its last epoch."""
    config = make_config(folder)
    status, world = make_status(state="finished"), make_world("cpu", controller="none")
    write_run(folder / "old", make_record(config=config, status=status, world=world), map(make_epoch, (1, 2, 3)))
    save_checkpoint(folder / "old", Checkpoint(3, 12, random_weights(make_task(config)), {}))


def same_settings(folder):
    """`same.toml`, a recipe with the settings of `old`."""
    (folder / "same.toml").write_text(SETTINGS_OF_OLD)


def weights_of_one_name(folder):
    for place in ("a", "b"):
        (folder / place).mkdir()
        save_file({"weight": np.arange(6.0)}, folder / place / "w.safetensors")
