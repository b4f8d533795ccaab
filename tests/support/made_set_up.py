"""A clone whose set-up decides, remembers and refuses as a real one does, on a machine that a test describes."""

import shutil
from pathlib import Path
from types import SimpleNamespace

from common.errors import UserError
from launch.installation import command
from launch.installation.cuda import Node, Toolkit
from launch.installation.run import SetUp

ROOT = Path(__file__).resolve().parents[2]
LOCK = "launch/installation/lock.txt"


def made_node(*, toolkits=("13.2", "12.9"), **changes):
    """Return a node with an A10G, whose CUDA toolkits have these versions, or with other values."""
    places = tuple(Toolkit(home=Path(f"/usr/local/cuda-{version}"), version=version) for version in toolkits)
    values = {"driver": "580.95.05", "capabilities": ("8.6",), "toolkits": places} | changes
    return Node(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


class MadeSetUp:
    """Set-up that does all but run its plan.

    Attributes:
        root: the clone, with all that set-up reads of one; its cache is beside it.
        there: this machine with its GPUs; None: it has none, and nobody must ask.
        free: gigabytes of the disk.
        failing: folders of environments that fail; the others are left as a real set-up leaves them.
        made: folders of environments whose plan would have been run.
    """

    def __init__(self, root, monkeypatch, *, there=None):
        self.root, self.there, self.free = root, there, 100.0
        self.failing, self.made = set(), []
        (root / LOCK).parent.mkdir(parents=True)
        shutil.copy(ROOT / LOCK, root / LOCK)
        shutil.copy(ROOT / "pyproject.toml", root)
        monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(root.parent / "cache"))
        monkeypatch.setattr(command, "gpu_present", lambda: self.there is not None)
        monkeypatch.setattr(command, "this_node", self._look)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=self.free * 1e9))
        run = SetUp.run
        monkeypatch.setattr(SetUp, "run", lambda work: run(work) if work.programs.dry else self._run(work.environment))

    def __call__(self, *args):
        return command.main(["--root", str(self.root), *args])

    def makes(self, *args):
        """Return the folders of the environments that are made."""
        self.made = []
        assert self(*args) == 0
        return self.made

    def folders(self):
        return sorted(path.name for path in self.root.iterdir() if path.name.startswith(".venv"))

    def _look(self):
        assert self.there, "the machine was asked"
        return self.there

    def _run(self, environment):
        if environment.folder in self.failing:
            raise UserError(f"{environment.folder} fails")
        self.made.append(environment.folder)
        (environment.venv / "bin").mkdir(exist_ok=True)
        Path(environment.python).touch()
        environment.finish("made")
