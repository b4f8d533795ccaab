"""Does many runs of one trainer in one start: `python tests/trainer_worker.py torch JOBS FOLDER`.

A start of the frameworks costs more than a small run. JOBS is a JSON list of `trainer_runs.Job`; each rank writes
FOLDER/<job>.rank<rank>.json with the exit code and all that was printed.
"""

import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from common import journal
from common.batches import normalize
from common.datasets import load_dataset
from common.prediction import read_trained_model

FILLER = "filler"
OUTPUTS = 20


def folder_hash(folder: Path) -> str:
    """Return a hash of the names and bytes of all files in a folder."""
    whole = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.rglob("*")):
        whole.update(str(file.relative_to(folder)).encode())
        whole.update(file.read_bytes() if file.is_file() else b"")
    return whole.hexdigest()


def _module(framework: str, name: str) -> Any:
    return importlib.import_module(f"{framework}_impl.{name}")


@contextlib.contextmanager
def unaveraged(framework: str) -> Iterator[None]:
    """Let every rank learn from its own gradients, as Horovod's own optimizer silently does under Keras 3."""
    if framework == "keras":
        exchange = _module("keras", "gradient_exchange").GradientExchange
        with mock.patch.object(exchange, "__call__", lambda self, gradients, variables: list(gradients)):
            yield
    else:
        distributed = _module("torch", "distributed")
        with mock.patch.object(distributed, "wrap_optimizer", lambda optimizer, **_: optimizer):
            yield


@contextlib.contextmanager
def one_differs(framework: str) -> Iterator[None]:
    """Change the last bit of one value on the last rank where weights are read for the check."""
    train = _module(framework, "train")
    get_weights = train.get_weights

    def changed(*arguments: Any, **options: Any) -> Any:
        weights = get_weights(*arguments, **options)
        if _rank() == 1:
            weights["fc2.bias"][3] = np.nextafter(weights["fc2.bias"][3], np.float32(np.inf))
        return weights

    with mock.patch.object(train, "get_weights", changed):
        yield


@contextlib.contextmanager
def full_disk(framework: str, *, room_bytes: int) -> Iterator[None]:
    """Let the disk be full when the first checkpoint is to be written: really full where it is a small one of its own.

    Elsewhere no file may grow beyond the room that is left, by the system's limit on the size of files.
    """
    save = journal.save_checkpoint
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    fillers: list[Path] = []

    def fill_and_save(run_folder: Path, *arguments: Any, **options: Any) -> None:
        disk = run_folder.parent
        if disk.is_mount():
            fillers.append(disk / FILLER)
            with fillers[0].open("wb", buffering=0) as file:
                with contextlib.suppress(OSError):
                    while file.write(bytes(4096)):
                        pass
                file.truncate(file.tell() - room_bytes)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, limits[1]))
        save(run_folder, *arguments, **options)

    try:
        with mock.patch.object(journal, "save_checkpoint", fill_and_save):
            yield
    finally:
        for filler in fillers:
            filler.unlink()
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


PATCHES: dict[str, Callable[[str], contextlib.AbstractContextManager[None]]] = {
    "": lambda framework: contextlib.nullcontext(),
    "unaveraged": unaveraged,
    "one_differs": one_differs,
    "full_disk": functools.partial(full_disk, room_bytes=0),
    "nearly_full_disk": functools.partial(full_disk, room_bytes=2**17),
}


def outputs_of(framework: str, run: str) -> list[list[float]]:
    """Return the linear outputs of a run's model for the first test images, as this framework computes them."""
    model = read_trained_model(Path(run))
    images = load_dataset(model.config.data.dataset).test.images[:OUTPUTS]
    return _module(framework, "predict").build_classifier(model)(normalize(images, model.table)).tolist()


def _rank() -> int:
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("HOROVOD_RANK", "0")))


def do(framework: str, job: dict[str, Any]) -> dict[str, Any]:
    """Return the exit code of one job, what it printed, and what else it asks for."""
    if framework == "keras":
        importlib.import_module("keras").utils.clear_session()  # as a new process would begin
    watched = Path(job["watch"]) if job["watch"] else None
    before = folder_hash(watched) if watched else None
    stdout, stderr, value = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr), PATCHES[job["patch"]](framework):
        try:
            if job["program"] == "outputs":
                code, value = 0, outputs_of(framework, job["arguments"][0])
            else:
                code = _module(framework, job["program"]).main(job["arguments"])
        except SystemExit as stop:
            code = int(stop.code or 0)
        except Exception:  # a bug: the test shows its traceback
            stderr.write(traceback.format_exc())
            code = 1
    untouched = before == folder_hash(watched) if watched else None
    return {
        "code": code,
        "stdout": stdout.getvalue(),
        "stderr": stderr.getvalue(),
        "value": value,
        "untouched": untouched,
    }


def main() -> None:
    """Do all jobs in their order."""
    framework, jobs, folder = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    for job in jobs:
        outcome = do(framework, job)
        (folder / f"{job['name']}.rank{_rank()}.json").write_text(json.dumps(outcome))
        if outcome["code"] == 1:
            break  # the other ranks may wait for this one


if __name__ == "__main__":
    main()
