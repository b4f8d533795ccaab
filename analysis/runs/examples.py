"""The runs that come with the project, in `analysis/data`, so that commands have something to show: `--examples`."""

from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
NOTE = "the examples ran on one virtual machine with 2 cores: they show what a command prints, not how clusters compare"
_FOLDERS = ("results", "examples")  # named after their experiments; parity's runs are of another kind


def example_folders() -> list[str]:
    """Return the folders of runs."""
    return [str(DATA / name) for name in _FOLDERS if (DATA / name).is_dir()]
