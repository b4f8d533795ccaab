"""What command lines of the trainers in `tests/refusals/train.toml` need in the current folder."""

from builders import make_config, make_record

from common.run_folder.records import NotRecorded
from common.run_folder.run_writer import RunWriter

RECIPES = {
    "binary": b"\xff\xfe\x00",
    "boolean": b"[training]\nepochs = true\n",
    "choice": b'[optimizer]\nloss = "hinge"\n',
    "cnn": b'[model]\nmodel = "cnn"\n',
    "date": b"[training]\nseed = 2026-01-31\n",
    "float": b"[training]\nepochs = 3.5\n",
    "name": b"[training]\nepoch = 3\n",
    "nan": b"[optimizer]\nlearning_rate = nan\n",
    "no-subject": b"epochs = 3\n",
    "open": b"[training\nepochs = 3\n",
    "pair": b"[data]\nimage_size = [3]\n",
    "range": b"[training]\nepochs = -1\n",
    "resume": b'[record]\nresume = "runs/a"\n',
    "subject": b"[trainin]\nepochs = 3\n",
    "text": b'[training]\nepochs = "3"\n',
}


def recipes(folder):
    """Write recipes, all but one of them wrong in its own way."""
    for name, text in RECIPES.items():
        (folder / f"{name}.toml").write_bytes(text)


def runs(folder):
    """Write run folders: one that can be resumed (an mlp), and others."""
    configs = {
        "old": make_config(folder),
        "cosine": make_config(folder, schedule={"decay": "cosine"}),
        "metered": make_config(folder, energy={"energy": True}),
        "imported": NotRecorded("imported"),
    }
    for name, config in configs.items():
        RunWriter.create(folder / name, make_record(config=config)).end("interrupted")
