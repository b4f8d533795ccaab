"""What both trials of a new Horovod share. Set-up keeps a compiled wheel only if it passes, with each framework alone.

On one rank, a group of tensors is averaged with a factor before, which runs the kernels, and a tensor is broadcast; on
a GPU both go through NCCL. Then the libraries that the process has loaded are looked over.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.utils.command_line import Parser, run_command

FACTOR = 0.5
REMEDY = "See the log of set-up"
ONLY_ONCE = ("libcudart.so", "libnccl.so", "libcudnn.so")  # CUDA's libraries whose versions must not mix


@dataclass(frozen=True)
class Answer:
    """What a framework's Horovod did and says of itself.

    Attributes:
        device: where the tensors were.
        averaged, broadcast: the results.
        built: mpi, gloo and nccl, as far as Horovod was built with them.
    """

    device: str
    averaged: Sequence[np.ndarray]
    broadcast: np.ndarray
    built: Sequence[str]


def run_trial(arguments: Sequence[str] | None, *, program: str, ask: Callable[[Sequence[np.ndarray]], Answer]) -> int:
    """Read the command line, try, print one line; return the exit code.

    Args:
        arguments: of the command line.
        program: its name in messages.
        ask: joins the one rank that was started; averages the arrays as one group, each times `FACTOR` before, and
            broadcasts the first.
    """
    parser = Parser(prog=program, description="Try the Horovod that was compiled, on one rank under mpirun.")
    parser.add_argument("--nccl", action="store_true", help="it must have been built with NCCL")
    options = parser.parse_args(arguments)
    return run_command(lambda: _try(ask, nccl=options.nccl), program=program)


def _try(ask: Callable[[Sequence[np.ndarray]], Answer], *, nccl: bool) -> None:
    arrays = [np.arange(size, dtype=np.float32) for size in (3, 70_000)]
    answer = ask(arrays)
    for name in ("mpi", "gloo", *(["nccl"] if nccl else [])):
        if name not in answer.built:
            raise UserError(f"Horovod was built without {name}. Received: {', '.join(answer.built)}. {REMEDY}")
    right = [np.array_equal(got, FACTOR * array) for got, array in zip(answer.averaged, arrays, strict=True)]
    if not all(right) or not np.array_equal(answer.broadcast, arrays[0]):
        raise UserError(f"Horovod computes wrong sums on this machine. Received: on {answer.device}. {REMEDY}")
    paths = loaded_libraries(Path("/proc/self/maps").read_text(errors="replace"))
    check_libraries(paths, environment=Path(sys.prefix).resolve(), needed=["libnccl.so"] if nccl else [])
    for path in paths:
        if "/horovod/" in str(path):
            check_links(path, loaded=paths)
    print(f"on {answer.device}, built with {', '.join(answer.built)}: right")


def loaded_libraries(maps: str) -> list[Path]:
    """Return the shared libraries in the text of `/proc/PID/maps`, where a file's path is the sixth field."""
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if ".so" in line and "/" in line}
    return sorted(Path(path) for path in paths if path.startswith("/"))


def check_libraries(paths: Sequence[Path], *, environment: Path, needed: Sequence[str]) -> None:
    """Check that CUDA's libraries are the environment's, each of one version.

    Args:
        paths: of all loaded libraries.
        environment: the folder of the virtual environment.
        needed: beginnings of names that must be among them.

    Raises:
        UserError: one is missing, is loaded twice, or came from elsewhere.
    """
    for name in ONLY_ONCE:
        found = [path for path in paths if path.name.startswith(name)]
        text = ", ".join(map(str, found)) or "none"
        if not found and name in needed:
            raise UserError(f"Horovod did not load {name}. Received: {text}. {REMEDY}")
        if len(found) > 1:
            raise UserError(f"two copies of {name} are loaded. Received: {text}. {REMEDY}")
        if found and not found[0].resolve().is_relative_to(environment):
            raise UserError(
                f"{name} is not this environment's. Received: {text}. Unset LD_LIBRARY_PATH, or purge modules"
            )


def check_links(library: Path, *, loaded: Sequence[Path]) -> None:
    """Check that all libraries that one needs are there: found by the linker, or loaded before by the framework.

    Missing symbols end the import before this, as Horovod's libraries are linked so that all are looked up at once.

    Raises:
        UserError: one is not there.
    """
    answer = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
    missing = set(re.findall(r"(\S+) => not found", answer)) - {path.name for path in loaded}
    if missing:
        text = ", ".join(sorted(missing))
        raise UserError(f"{library.name} needs libraries that are not there. Received: {text}. {REMEDY}")
