"""What command lines of the trainers in `tests/refusals/train.toml` need in the current folder."""

from builders import make_config, make_record

from common.run_folder.records import NotRecorded
from common.run_folder.run_writer import RunWriter


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
