"""What set-up remembers, in `horovod-twins/` of each environment that it made.

stamp.json   written last, removed first: what is installed, and from which lock files. No stamp, no use.
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
import tomllib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.names import framework_here
from common.utils.atomic import write_atomically
from common.utils.whole_files import parse_json, read_text
from launch.horovod import build as horovod_build
from launch.installation.cuda import EACH, ONLY, Environment
from launch.installation.plan import FRAMEWORKS, Request


def choose_frameworks(text: str, *, need: str = "", remembered: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the frameworks to install: those named, else those of last time, else both; and the one that is needed."""
    named, needed = [list(map(framework_here, words.replace(",", " ").split())) for words in (text, need)]
    for name in [*named, *needed]:
        if name not in FRAMEWORKS:
            raise UserError(f"FRAMEWORKS takes torch, keras or both, FRAMEWORK takes one of them. Received: {name}")
    return in_order({*(named or remembered or FRAMEWORKS), *needed})


def in_order(frameworks: Collection[str]) -> tuple[str, ...]:
    """Return frameworks in the order that is used everywhere."""
    return tuple(framework for framework in FRAMEWORKS if framework in frameworks)


def remembered(root: Path) -> tuple[Environment, ...]:
    """Return the environments that were made in a clone, finished or not.

    They stay as they were made: a cluster's login node without a GPU shares them with the nodes that have one.
    """
    folders = EACH if (root / ONLY).is_symlink() or (root / EACH[0]).exists() else (ONLY,)
    found = [SetupState(root, folder).environment() for folder in folders]
    return tuple(environment for environment in found if environment)


@contextmanager
def locked(*states: "SetupState") -> Iterator[None]:
    """Keep other set-ups out of the clone of these environments. The lock ends with the last process that holds it.

    Raises:
        UserError: an environment was not made by this set-up.
    """
    root = states[0].root
    for state in (SetupState(root, folder) for folder in (ONLY, *EACH)):
        if state.venv.exists() and not state.folder.exists() and any(state.venv.iterdir()):
            raise UserError(f"{state.venv} was not made by this set-up. Move it away, then run the same command again")
    descriptor = os.open(root, os.O_RDONLY)  # the folder itself: environments come and go
    try:
        wait_for_lock(descriptor, "another set-up works in this clone")
        for state in states:
            state.lock_descriptor = descriptor
        yield
    finally:
        for state in states:
            state.lock_descriptor = -1
        os.close(descriptor)


def arrange(root: Path, environments: Sequence[Environment]) -> None:
    """Remove what belongs to the other arrangement, one environment or one per framework, and link `.venv` if needed.

    The other's would not only lie about: programs would be handed over to them.
    """
    only, single = root / ONLY, environments[0].folder == ONLY
    if only.is_symlink():
        only.unlink()
    for folder in EACH if single else (ONLY,):
        state = SetupState(root, folder)
        if state.folder.is_dir():
            (state.folder / "stamp.json").unlink(missing_ok=True)
            state.installing.touch()  # whatever is left after an interruption is not used
            state.wipe()
            shutil.rmtree(state.venv)
    if not single:
        there = [folder for folder in EACH if (root / folder).exists()]
        only.symlink_to(min([*there, environments[0].folder], key=EACH.index))


class SetupState:
    """The memory of set-up in one environment of a clone."""

    def __init__(self, root: Path, folder: str = ONLY) -> None:
        """Look at the clone in `root`; nothing is created."""
        self.root, self.venv = root, root / folder
        self.folder = self.venv / "horovod-twins"
        self.log = self.folder / "setup.log"
        self.installing = self.folder / "installing"
        self.lock_descriptor = -1

    def chosen(self) -> tuple[str, ...]:
        """Return the frameworks that were asked for last, if any."""
        path = self.folder / "chosen"
        names = path.read_text(encoding="utf-8").split() if path.exists() else []
        return tuple(name for name in names if name in FRAMEWORKS)

    def environment(self) -> Environment | None:
        """Return what this environment was made for; None if there is none yet."""
        place = read(self.folder / "place.json")
        if "gpu" not in place:
            return None
        return Environment(
            folder=self.venv.name,
            frameworks=self.chosen() or self.installed()[0],
            cuda=place.get("cuda"),
            capabilities=tuple(place.get("capabilities", ())),
        )

    def satisfies(self, request: Request) -> bool:
        """Return whether all that is asked for is installed, whole and current. More may be installed."""
        stamp = read(self.folder / "stamp.json")
        return (
            stamp.get("fingerprint") == fingerprint(request)
            and self.usable(request)
            and set(request.frameworks) <= set(stamp["frameworks"])
            and (stamp["dev"] or not request.dev)
        )

    def usable(self, request: Request) -> bool:
        """Return whether there is an environment to build upon: made here, for this kind of machine, unbroken."""
        whole = (self.venv / "bin" / "python").exists() and not self.installing.exists()
        return whole and read(self.folder / "place.json") == place(request)

    def installed(self) -> tuple[tuple[str, ...], bool]:
        """Return the frameworks that are installed, and whether the tools for developers are."""
        stamp = read(self.folder / "stamp.json")
        return tuple(stamp.get("frameworks", ())), bool(stamp.get("dev"))

    def tried(self, request: Request) -> str:
        """Return the key of the Horovod that was tried here with the packages of today; empty: none was."""
        stamp = read(self.folder / "stamp.json")
        is_current = stamp.get("fingerprint") == fingerprint(request) and self.usable(request)
        known = set(stamp.get("frameworks", ()))
        return stamp.get("horovod", "") if is_current and set(request.frameworks) <= known else ""

    def begin(self, request: Request) -> None:
        """Take the stamp away, and with it an environment that cannot be built upon.

        Raises:
            UserError: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"this folder cannot be written: {error}. Use a clone of your own") from None
        (self.folder / "stamp.json").unlink(missing_ok=True)
        if not self.usable(request):
            self.wipe()
        (self.folder / "chosen").write_text(" ".join(request.frameworks), encoding="utf-8")
        write(self.folder / "place.json", place(request))

    def wipe(self) -> None:
        """Remove the environment; only what set-up remembers of it stays."""
        for path in self.venv.iterdir():
            if path.is_dir() and not path.is_symlink() and path != self.folder:
                shutil.rmtree(path)
            elif path != self.folder:
                path.unlink()
        for name in ("place.json", "installing", "setup.log"):
            (self.folder / name).unlink(missing_ok=True)

    def finish(self, request: Request, horovod: str) -> None:
        """Write the stamp: from now on this environment may be used, with the Horovod of that key."""
        stamp = {"fingerprint": fingerprint(request), "frameworks": list(request.frameworks), "dev": request.dev}
        write(self.folder / "stamp.json", stamp | {"horovod": horovod})


def wait_for_lock(descriptor: int, why: str) -> None:
    """Take the lock; say so if that means waiting. A file system without locks goes without."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"setup: {why}; waiting for it", flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return


def place(request: Request) -> dict[str, Any]:
    """Return what an environment is bound to: its programs hold its absolute path, its packages the kind of machine."""
    cuda = {"cuda": request.cuda, "capabilities": list(request.capabilities)} if request.cuda else {}
    python = ".".join(map(str, sys.version_info[:2]))
    return {"root": str(request.root.resolve()), "python": python, "gpu": bool(request.cuda), **cuda}


def fingerprint(request: Request) -> str:
    """Return a hash of all that decides what is installed, but for the choice of frameworks and tools."""
    project = tomllib.loads((request.root / "pyproject.toml").read_text(encoding="utf-8"))
    installed_parts = {name: project.get(name) for name in ("build-system", "project")}
    installed_parts["setuptools"] = project.get("tool", {}).get("setuptools")
    digest = hashlib.sha256((json.dumps(installed_parts, sort_keys=True) + horovod_build.recipe()).encode())
    here = Path(__file__).resolve().parent
    for path in [request.lock, *sorted(here.glob("*.py"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def read(path: Path) -> dict[str, Any]:
    """Return a small JSON file's content; empty if it is missing or no JSON."""
    try:
        content = parse_json(read_text(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a small JSON file in one step."""
    write_atomically(path, json.dumps(content, indent=1) + "\n")
