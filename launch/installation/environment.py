"""A virtual environment of a clone: what is wanted in it, and what set-up remembers in its folder `horovod-twins/`.

stamp.json   written last, removed first: what is installed, and from which lock file. No stamp, no use.
place.json   where and for what kind of machine this environment was made; if that changed it is created again
chosen       the frameworks asked for last, the default of the next time
installing   there while pip changes the environment: found at the start, the environment is created again,
             for a package that pip was unpacking can look installed
setup.log    the output of pip and CMake
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tomllib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.utils.atomic import write_atomically
from common.utils.whole_files import parse_json, read_text
from launch.horovod import build as horovod_build
from launch.installation import packages

FRAMEWORKS = ("torch", "keras")
NAMES = {"torch": "PyTorch", "keras": "TensorFlow"}
HOROVODS_NAMES = {"torch": "torch", "keras": "tensorflow"}
PACKED = "environments.json"  # in a folder of wheels
ONLY, EACH = ".venv", (".venv-torch", ".venv-keras")  # folders of environments; beside EACH, ONLY is a link


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtual environment: what is wanted in it."""

    root: Path  # the clone
    folder: str = ONLY  # its name there
    frameworks: tuple[str, ...] = FRAMEWORKS
    cuda: int | None = None  # CUDA's major version; None: for the CPU
    capabilities: tuple[str, ...] = ()  # compute capabilities that Horovod is compiled for
    dev: bool = False  # with the tools for tests, lint and types
    wheels: Path | None = None  # a folder to install from, without a network

    @property
    def venv(self) -> Path:
        """The environment's folder."""
        return self.root / self.folder

    @property
    def python(self) -> str:
        """The environment's interpreter."""
        return str(self.venv / "bin" / "python")

    @property
    def memory(self) -> Path:
        """The folder of what set-up remembers."""
        return self.venv / "horovod-twins"

    @property
    def installing(self) -> Path:
        """The mark of an environment that pip changes."""
        return self.memory / "installing"

    @property
    def lock(self) -> Path:
        """The file of the pinned versions."""
        return self.root / "launch" / "installation" / "lock.txt"

    def pins(self, *groups: str) -> dict[str, str]:
        """Return name -> version of the packages of these groups, or of all."""
        entries = packages.read_lock(self.lock)
        return packages.pins(package for package in entries if not groups or package.groups & {*groups})

    def stamp(self) -> dict[str, Any]:
        """Return what is installed; empty: nothing that may be used."""
        return _read(self.memory / "stamp.json")

    def frameworks_there(self) -> tuple[str, ...]:
        """Return the frameworks that are installed."""
        return tuple(self.stamp().get("frameworks", ()))

    def place(self) -> dict[str, Any]:
        """Return what it is bound to: its programs hold its absolute path, its packages the kind of machine."""
        cuda = {"cuda": self.cuda, "capabilities": list(self.capabilities)} if self.cuda else {}
        python = ".".join(map(str, sys.version_info[:2]))
        return {"root": str(self.root.resolve()), "python": python, "gpu": bool(self.cuda), **cuda}

    def is_usable(self) -> bool:
        """Return whether there is an environment to build upon: made here, for this kind of machine, unbroken."""
        is_whole = Path(self.python).exists() and not self.installing.exists()
        return is_whole and _read(self.memory / "place.json") == self.place()

    def has_frameworks(self) -> bool:
        """Return whether the frameworks are installed, whole and current. More may be installed."""
        is_current = self.stamp().get("fingerprint") == self.fingerprint() and self.is_usable()
        return is_current and {*self.frameworks} <= {*self.frameworks_there()}

    def is_complete(self) -> bool:
        """Return whether all that is wanted is installed, whole and current."""
        return self.has_frameworks() and (self.stamp()["dev"] or not self.dev)

    def with_installed(self) -> "Environment":
        """Return this environment with what is wanted and what is in it already."""
        if not self.is_usable():
            return self
        frameworks = in_order({*self.frameworks, *self.frameworks_there()})
        return replace(self, frameworks=frameworks, dev=self.dev or self.stamp().get("dev", False))

    def begin(self) -> None:
        """Take the stamp away, and with it an environment that cannot be built upon.

        Raises:
            UserError: the folder cannot be written.
        """
        try:
            self.memory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"this folder cannot be written: {error}. Use a clone of your own") from None
        (self.memory / "stamp.json").unlink(missing_ok=True)
        if not self.is_usable():
            self.wipe()
        (self.memory / "chosen").write_text(" ".join(self.frameworks), encoding="utf-8")
        _write(self.memory / "place.json", self.place())

    def wipe(self) -> None:
        """Remove the environment; only what set-up remembers of it stays."""
        for path in self.venv.iterdir():
            if path.is_dir() and not path.is_symlink() and path != self.memory:
                shutil.rmtree(path)
            elif path != self.memory:
                path.unlink()
        for name in ("place.json", "installing", "setup.log"):
            (self.memory / name).unlink(missing_ok=True)

    def finish(self, horovod: str) -> None:
        """Write the stamp: from now on this environment may be used, with the Horovod of that key."""
        stamp = {"fingerprint": self.fingerprint(), "frameworks": list(self.frameworks), "dev": self.dev}
        _write(self.memory / "stamp.json", stamp | {"horovod": horovod})

    def fingerprint(self) -> str:
        """Return a hash of all that decides what is installed, but for the choice of frameworks and tools."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        parts = {name: project.get(name) for name in ("build-system", "project")}
        parts["setuptools"] = project.get("tool", {}).get("setuptools")
        digest = hashlib.sha256((json.dumps(parts, sort_keys=True) + horovod_build.recipe()).encode())
        for path in [self.lock, *sorted(Path(__file__).resolve().parent.glob("*.py"))]:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()


def in_order(frameworks: Collection[str]) -> tuple[str, ...]:
    """Return frameworks in the order that is used everywhere."""
    return tuple(framework for framework in FRAMEWORKS if framework in frameworks)


def frameworks_of(environments: Iterable[Environment]) -> tuple[str, ...]:
    """Return the frameworks that are wanted in any of the environments."""
    return in_order({framework for environment in environments for framework in environment.frameworks})


def site_packages(venv: Path) -> Path:
    """Return the folder of installed packages of a virtual environment."""
    return Path(sysconfig.get_path("platlib", "venv", vars={"base": str(venv), "platbase": str(venv)}))


def remembered(root: Path) -> tuple[Environment, ...]:
    """Return the environments that were made in a clone, finished or not, with the frameworks that were asked for.

    They stay as they were made: a cluster's login node without a GPU shares them with the nodes that have one.
    """
    environments = []
    for folder in EACH if (root / ONLY).is_symlink() or (root / EACH[0]).exists() else (ONLY,):
        environment = Environment(root=root, folder=folder)
        place, chosen = _read(environment.memory / "place.json"), environment.memory / "chosen"
        if "gpu" in place:
            names = chosen.read_text(encoding="utf-8").split() if chosen.exists() else environment.frameworks_there()
            capabilities = tuple(place.get("capabilities", ()))
            environments.append(
                replace(environment, frameworks=in_order(names), cuda=place.get("cuda"), capabilities=capabilities)
            )
    return tuple(environments)


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep other set-ups out of a clone. The lock ends with the last program that this process has started.

    Raises:
        UserError: an environment was not made by this set-up.
    """
    for environment in (Environment(root=root, folder=folder) for folder in (ONLY, *EACH)):
        if environment.venv.exists() and not environment.memory.exists() and any(environment.venv.iterdir()):
            raise UserError(
                f"{environment.venv} was not made by this set-up. Move it away, then run the same command again"
            )
    descriptor = os.open(root, os.O_RDONLY)  # the folder itself: environments come and go
    os.set_inheritable(descriptor, True)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("setup: another set-up works in this clone; waiting for it", flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(descriptor)


def arrange(root: Path, environments: Sequence[Environment]) -> None:
    """Remove what belongs to the other arrangement, one environment or one per framework, and link `.venv` if needed.

    The other's would not only lie about: programs would be handed over to them.
    """
    only, is_single = root / ONLY, environments[0].folder == ONLY
    if only.is_symlink():
        only.unlink()
    for folder in EACH if is_single else (ONLY,):
        other = Environment(root=root, folder=folder)
        if other.memory.is_dir():
            (other.memory / "stamp.json").unlink(missing_ok=True)
            other.installing.touch()  # whatever is left after an interruption is not used
            other.wipe()
            shutil.rmtree(other.venv)
    if not is_single:
        there = [folder for folder in EACH if (root / folder).exists()]
        only.symlink_to(min([*there, environments[0].folder], key=EACH.index))


def pack(folder: Path, environments: Sequence[Environment]) -> None:
    """Write into a folder of wheels which environments it is for, unless for the CPU: that serves either framework."""
    if any(environment.cuda for environment in environments):
        keys = ("folder", "frameworks", "cuda", "capabilities")
        content = [{key: getattr(environment, key) for key in keys} for environment in environments]
        _write(folder / PACKED, content)


def unpack(folder: Path, *, root: Path) -> tuple[Environment, ...]:
    """Return the environments that a folder of wheels is for, in a clone; none: for the CPU.

    Raises:
        UserError: the list is damaged.
    """
    path = folder / PACKED
    if not path.exists():
        return ()
    try:
        return tuple(
            Environment(
                root=root,
                folder=str(entry["folder"]),
                frameworks=tuple(entry["frameworks"]),
                cuda=int(entry["cuda"]),
                capabilities=tuple(entry["capabilities"]),
            )
            for entry in parse_json(read_text(path))
        )
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(
            f"the list of environments is damaged. Received: {path}. Fill the folder again: make wheels"
        ) from None


def require(frameworks: Sequence[str], environments: Sequence[Environment], *, folder: Path) -> None:
    """Raise UserError if a folder of wheels for these environments lacks a framework that is wanted."""
    lacking = [NAMES[name] for name in in_order({*frameworks} - {*frameworks_of(environments)})]
    if lacking:
        raise UserError(
            f"the folder of wheels lacks a framework. Received: {folder} without {' and '.join(lacking)}. Name what it "
            "has, or fill another folder: make wheels GPU=1 WHEELS=DIR"
        )


def _read(path: Path) -> dict[str, Any]:
    """Return a small JSON file's content; empty if it is missing or no JSON."""
    try:
        content = parse_json(read_text(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(path: Path, content: Any) -> None:
    """Write a small JSON file in one step."""
    write_atomically(path, json.dumps(content, indent=1) + "\n")
