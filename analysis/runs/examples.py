"""The runs that come with the project, in `analysis/data`, so that commands have something to show: `--examples`."""

from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
NOTE = "the examples ran on one virtual machine with 2 cores: they show what a command prints, not how clusters compare"
_FOLDERS = ("results", "examples")  # named after their experiments; parity's runs are of another kind


def example_folders(command: str | None = None) -> list[str]:
    """Return the folders of runs; for a command named as an experiment, those of that experiment."""
    own = (command,) if command and (DATA / command).is_dir() else _FOLDERS
    return [str(DATA / name) for name in own if (DATA / name).is_dir()]
