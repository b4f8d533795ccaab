"""Try a Horovod with one framework, on one rank under mpirun: a group is averaged with a factor, a tensor broadcast.

    mpirun -np 1 python trial.py torch|tensorflow [--nccl]

On a GPU both go through NCCL. Then the libraries that the process has loaded are looked over. `build.py` keeps a wheel
only if it passes, with each framework alone.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FACTOR = 0.5
ONLY_ONCE = ("libcudart.so", "libnccl.so", "libcudnn.so")  # CUDA's libraries whose versions must not mix


class TrialError(Exception):
    """What is wrong with a Horovod."""


def on_torch(torch: Any, hvd: Any, arrays: Sequence[Any]) -> tuple[str, list[Any], Any]:
    """Return the device, the averages and what was broadcast."""
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    tensors = [torch.from_numpy(array).to(device) for array in arrays]
    averaged = hvd.grouped_allreduce(tensors, op=hvd.Average, prescale_factor=FACTOR)
    broadcast = hvd.broadcast(tensors[0], root_rank=0)
    return device, [tensor.cpu().numpy() for tensor in averaged], broadcast.cpu().numpy()


def on_tensorflow(tf: Any, hvd: Any, arrays: Sequence[Any]) -> tuple[str, list[Any], Any]:
    """Return the device, the averages and what was broadcast."""
    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    with tf.device(device):
        tensors = [tf.constant(array) for array in arrays]
        averaged = hvd.grouped_allreduce(tensors, op=hvd.Average, prescale_factor=FACTOR)
        broadcast = hvd.broadcast(tensors[0], root_rank=0)
    return device, [tensor.numpy() for tensor in averaged], broadcast.numpy()


def attempt(framework: str, *, nccl: bool) -> str:
    """Try; return what worked, in words."""
    module = importlib.import_module(framework)  # before Horovod: its library needs the framework's
    hvd = importlib.import_module(f"horovod.{framework}")
    numpy = importlib.import_module("numpy")
    hvd.init()
    arrays = [numpy.arange(size, dtype=numpy.float32) for size in (3, 70_000)]
    device, averaged, broadcast = (on_torch if framework == "torch" else on_tensorflow)(module, hvd, arrays)
    features = {"mpi": hvd.mpi_built(), "gloo": hvd.gloo_built(), "nccl": hvd.nccl_built()}
    built = [name for name, is_built in features.items() if is_built]
    for name in ("mpi", "gloo", *(["nccl"] if nccl else [])):
        if name not in built:
            raise TrialError(f"Horovod was built without {name}. Received: {', '.join(built)}")
    right = [numpy.array_equal(got, FACTOR * array) for got, array in zip(averaged, arrays, strict=True)]
    if not all(right) or not numpy.array_equal(broadcast, arrays[0]):
        raise TrialError(f"Horovod computes wrong sums on this machine. Received: on {device}")
    paths = loaded_libraries(Path("/proc/self/maps").read_text(errors="replace"))
    check_libraries(paths, environment=Path(sys.prefix).resolve(), needed=["libnccl.so"] if nccl else [])
    for path in paths:
        if "/horovod/" in str(path):
            check_links(path, loaded=paths)
    return f"{framework} on {device}, built with {', '.join(built)}: right"


def loaded_libraries(maps: str) -> list[Path]:
    """Return the shared libraries in the text of `/proc/PID/maps`, where a file's path is the sixth field."""
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if ".so" in line and "/" in line}
    return sorted(Path(path) for path in paths if path.startswith("/"))


def check_libraries(paths: Sequence[Path], *, environment: Path, needed: Sequence[str]) -> None:
    """Check that CUDA's libraries are of the environment's folder, each of one version, and that the needed are loaded.

    Raises:
        TrialError: one is missing, is loaded twice, or came from elsewhere.
    """
    for name in ONLY_ONCE:
        found = [path for path in paths if path.name.startswith(name)]
        text = ", ".join(map(str, found)) or "none"
        if not found and name in needed:
            raise TrialError(f"Horovod did not load {name}. Received: {text}")
        if len(found) > 1:
            raise TrialError(f"two copies of {name} are loaded. Received: {text}")
        if found and not found[0].resolve().is_relative_to(environment):
            raise TrialError(f"{name} is not this environment's. Received: {text}. Unset LD_LIBRARY_PATH")


def check_links(library: Path, *, loaded: Sequence[Path]) -> None:
    """Check that all libraries that one needs are there: found by the linker, or loaded before by the framework.

    Missing symbols end the import before this, as Horovod's libraries are linked so that all are looked up at once.

    Raises:
        TrialError: one is not there.
    """
    answer = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
    missing = set(re.findall(r"(\S+) => not found", answer)) - {path.name for path in loaded}
    if missing:
        raise TrialError(f"{library.name} needs libraries that are not there. Received: {', '.join(sorted(missing))}")


def main() -> int:
    """Read the command line, try, print one line; return the exit code."""
    parser = argparse.ArgumentParser(prog="trial.py", description="Try a Horovod on one rank under mpirun.")
    parser.add_argument("framework", choices=("torch", "tensorflow"))
    parser.add_argument("--nccl", action="store_true", help="it must have been built with NCCL")
    options = parser.parse_args()
    try:
        print(attempt(options.framework, nccl=options.nccl), flush=True)
    except TrialError as error:
        print(f"trial.py: error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    if code := main():
        os._exit(code)  # mpirun would wait for MPI's end
