"""What command lines of the trainers in `tests/refusals/train.toml` need in the current folder."""

from builders import make_config, make_record, make_status, write_run

from common.run_folder.records import NotRecorded


def runs(folder):
    """Write run folders: one that can be resumed (an mlp), and others."""
    configs = {
        "old": make_config(folder),
        "cosine": make_config(folder, schedule={"decay": "cosine"}),
        "metered": make_config(folder, energy={"energy": True}),
        "imported": NotRecorded("imported"),
    }
    for name, config in configs.items():
        write_run(folder / name, make_record(config=config, status=make_status(state="interrupted")), [])
