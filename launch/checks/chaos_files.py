"""File trials of `python -m launch chaos`: one file operation of a program fails, or ends it.

Every operation on the files of a trial is counted, so that each can be struck: while a checkpoint is written, between
writing a file and renaming it, when the last epoch ends. Or a run is ended, and its newest checkpoint is damaged.
"""

import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from common.checks.chaos_record import DamageKind, FileKind, Kind, Trial
from common.errors import UserError
from common.run_folder.checkpoints import usable_checkpoints
from common.run_folder.records import read_run
from common.utils.paths import ROOT
from launch.checks.chaos_verdict import MOST_STARTS, has_finished, is_kept, is_readable, same_run
from launch.checks.chaos_worker import Order, Outcome
from launch.checks.file_faults import ACTIONS
from launch.starting.processes import trainer_environment

MOST_SECONDS = 120.0  # of a program, which else counts as hung
USER_ERROR = 2
USER_ERRORS = (0, USER_ERROR, -9)  # exit codes that a fault may have: not noticed, one line, ended by it
DAMAGES = get_args(DamageKind)
SETTINGS = ["--dataset", "synthetic:64x28x28x1x10", "--model", "mlp", "--dtype", "float64", "--no-dropout"]
SETTINGS += ["--batch-size", "16", "--epochs", "3", "--threads", "1", "--checkpoint-minutes", "0.0001"]
IMAGES, RUNS = "images", "runs"  # folders beside those of the trials
EXPERIMENT = """
[settings]
launcher = "python"
model = "mlp"
dataset = "synthetic:64x28x28x1x10"
dtype = "float64"
batch_size = 16
epochs = 1
threads = 1

[[cells]]
framework = "torch"
"""


@dataclass(frozen=True)
class Writer:
    """A program that writes files.

    Attributes:
        arguments: those that write into a folder.
        result: what it writes there; of a run its folder.
        framework: of a run.
        starts_ranks: the run is of processes that it starts, and that may outlive it.
        weight: how often it is drawn.
    """

    module: str
    arguments: Callable[[Path], list[str]]
    result: str
    framework: str = ""
    starts_ranks: bool = False
    weight: float = 1.0

    @property
    def is_run(self) -> bool:
        """Whether a run is made."""
        return self.framework != ""

    @property
    def is_trainer(self) -> bool:
        """Whether it trains in its own process."""
        return self.is_run and not self.starts_ranks


def _train(folder: Path) -> list[str]:
    return [*SETTINGS, "--runs-folder", str(folder), "--name", "run", "--resume-or-start"]


def _prepare(folder: Path) -> list[str]:
    made = ["--image-size", "16x16", "--split", "60/20/20", "--output", str(folder / "made")]
    return ["images", "prepare", str(folder.parent / IMAGES), *made]


def _fetch(folder: Path) -> list[str]:
    return ["datasets", "fetch", f"images:{folder.parent / IMAGES}"]


def _fetch_runs(folder: Path) -> list[str]:
    return ["fetch", "--from", str(folder.parent / RUNS), "--folder", str(folder / "fetched")]


def _experiment(folder: Path) -> list[str]:
    file = folder / "made.toml"
    file.write_text(EXPERIMENT)
    return ["experiment", "run", str(file), "--runs-folder", str(folder)]


WRITERS = {
    "run of PyTorch": Writer("torch_impl.train", _train, "run", framework="torch"),
    "run of Keras": Writer("keras_impl.train", _train, "run", framework="keras"),
    "prepared images": Writer("common.__main__", _prepare, "made"),
    "data set in the cache": Writer("common.__main__", _fetch, "cache/datasets"),
    "fetched run": Writer("launch.__main__", _fetch_runs, "fetched"),
    "experiment": Writer(
        "launch.__main__", _experiment, "made/torch-mlp-np1-r1", framework="torch", starts_ranks=True, weight=0.2
    ),
}


@dataclass(frozen=True, kw_only=True)
class FileFault:
    """What happens to which writer, at which share of its file operations."""

    writer: str
    kind: FileKind | DamageKind
    share: float


def draw_file_fault(seed: int, number: int, *, writers: list[str]) -> FileFault:
    """Return the fault of a trial, which seed and number decide."""
    drawn = random.Random(f"{seed} {number} files")
    (name,) = drawn.choices(writers, [WRITERS[one].weight for one in writers])
    writer, share = WRITERS[name], drawn.random()
    kind = drawn.choice([*get_args(FileKind), *(DAMAGES if writer.is_trainer else ())])
    # Checkpoints are damaged where there are some: the program is ended in the middle.
    return FileFault(writer=name, kind=kind, share=0.4 + 0.4 * share if kind in DAMAGES else share)


class FileTrials:
    """Strikes writers in a folder; to be used as a context, which ends the worker.

    Args:
        library: as `build_library` made it.
    """

    def __init__(self, folder: Path, library: Path, *, writers: list[str]) -> None:
        self.folder = folder
        modules = sorted({WRITERS[name].module for name in writers})
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "launch.checks.chaos_worker", *modules],
            cwd=ROOT,
            env=trainer_environment() | {"LD_PRELOAD": str(library)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._undisturbed: dict[str, tuple[Path, int]] = {}
        if "common.__main__" in modules and not (folder / IMAGES).exists():
            drawn = ["images", "draw", str(folder / IMAGES), "--images", "90", "--image-size", "16x16"]
            self._order("common.__main__", drawn, folder)
        if "fetched run" in writers and not (folder / RUNS).exists():
            trainer = next(WRITERS[name] for name in writers if WRITERS[name].is_trainer)
            self._order(trainer.module, _train(folder / RUNS), folder)

    def __enter__(self) -> "FileTrials":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._worker.stdin
        self._worker.stdin.close()
        self._worker.wait()

    def make(self, fault: FileFault, *, seed: int = 1, number: int) -> Trial:
        """Make a trial.

        Raises:
            UserError: a writer fails without a fault.
        """
        reference, operations = self._reference(fault.writer)
        folder = self._folder(f"files-{seed}-{number}")
        operation = 1 + int(fault.share * operations)
        outcome = self._run(fault.writer, folder, operation=operation, action=ACTIONS.get(fault.kind, ACTIONS["end"]))
        writer = WRITERS[fault.writer]
        result = folder / writer.result
        good = is_readable(result) if writer.is_run else not _content(result) or self._is_whole(fault.writer, folder)
        kept = not writer.is_run or is_kept(result, epochs=0)
        starts, left, hung = 1, outcome.left and not writer.starts_ranks, outcome.hung
        damaged = damage_newest_checkpoint(result, fault.kind, seed=number) if fault.kind in DAMAGES else None
        if damaged:  # found, and as the message says
            starts, again = 2, self._run(fault.writer, folder)
            good, hung = good and again.code == USER_ERROR and damaged.exists(), hung or again.hung
            shutil.rmtree(damaged, ignore_errors=True)  # it is gone where nobody found the damage
        while not (is_done := self._is_done(fault.writer, folder)) and starts < MOST_STARTS:
            starts += 1
            again = self._run(fault.writer, folder)
            left, hung = left or again.left, hung or again.hung
        output = _log(folder).read_text(errors="replace")
        return Trial(
            number=number,
            seed=seed,
            framework="",
            way="files",
            kind=fault.kind if damaged or fault.kind not in DAMAGES else "end",
            victim=fault.writer,
            operation=operation,
            after_seconds=outcome.seconds,
            epochs_before=None,
            ended_seconds=outcome.seconds,
            hung=hung,
            is_readable=good,
            is_kept=kept,
            # A program that was killed cannot say how far it came.
            strikes=int(outcome.code == -9 or outcome.operations >= operation),
            starts=starts if is_done else 0,
            is_equal=is_done and (not writer.is_run or same_run(result, reference)),
            left_behind=["processes"] * left + self._partial_files(result, fault.kind),
            traceback="Traceback" in output or outcome.code not in (*USER_ERRORS, *[1] * writer.starts_ranks),
        )

    def _partial_files(self, result: Path, kind: Kind) -> list[str]:
        """Return unfinished files that nobody has removed; a broken disk may have refused to."""
        found = [] if kind == "EIO" else result.rglob(".*.partial-*")
        return [path.name for path in found if path.is_file() or any(one.is_file() for one in path.rglob("*"))]

    def _reference(self, name: str) -> tuple[Path, int]:
        """Return what a writer makes without a fault, and its number of file operations."""
        if name not in self._undisturbed:
            folder = self._folder(f"undisturbed-{name.replace(' ', '-')}")
            outcome = self._run(name, folder)
            if outcome.code or not self._is_done(name, folder):
                raise UserError(f"a program fails without any fault. Received: {name}. See {_log(folder)}")
            self._undisturbed[name] = folder / WRITERS[name].result, outcome.operations
        return self._undisturbed[name]

    def _folder(self, name: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)  # of a campaign that was cut short
        folder.mkdir()
        _log(folder).unlink(missing_ok=True)
        return folder

    def _run(self, name: str, folder: Path, *, operation: int = 0, action: int = 0) -> Outcome:
        writer = WRITERS[name]
        return self._order(writer.module, writer.arguments(folder), folder, operation=operation, action=action)

    def _order(
        self, module: str, arguments: list[str], folder: Path, *, operation: int = 0, action: int = 0
    ) -> Outcome:
        order = Order(
            module=module,
            arguments=arguments,
            folder=str(folder),
            operation=operation,
            action=action,
            output=str(_log(folder)),
            seconds=MOST_SECONDS,
            variables={"HOROVOD_TWINS_CACHE": str(folder / "cache")},
        )
        assert self._worker.stdin and self._worker.stdout
        self._worker.stdin.write(json.dumps(asdict(order)) + "\n")
        self._worker.stdin.flush()
        answer = self._worker.stdout.readline()
        if not answer:
            raise UserError("the worker of file trials has ended; what it printed is above")
        return Outcome(**json.loads(answer))

    def _is_done(self, name: str, folder: Path) -> bool:
        if WRITERS[name].is_run:
            return has_finished(folder / WRITERS[name].result)
        return self._is_whole(name, folder)

    def _is_whole(self, name: str, folder: Path) -> bool:
        reference, _ = self._undisturbed.get(name, (folder / WRITERS[name].result, 0))
        return reference.exists() and _content(folder / WRITERS[name].result) == _content(reference)


def damage_newest_checkpoint(run: Path, kind: Kind, *, seed: int) -> Path | None:
    """Cut a file of the checkpoint that a run would resume from, or flip one bit; None: it would resume from none."""
    drawn, found = random.Random(seed), []
    with suppress(UserError):
        if not has_finished(run):
            found = usable_checkpoints(run, recorded_epochs=len(read_run(run).epochs))
    if not found:
        return None
    file = drawn.choice(sorted(found[-1].iterdir()))
    content = bytearray(file.read_bytes())
    at = drawn.randrange(len(content))
    if kind == "truncated checkpoint":
        del content[at:]
    else:
        content[at] ^= 1 << drawn.randrange(8)
    file.write_bytes(content)
    return found[-1]


def _log(folder: Path) -> Path:
    """Return the file with what a writer has printed: not among those whose disk is full."""
    return folder.with_suffix(".log")


def _content(path: Path) -> dict[str, str]:
    """Return the hash of a file, or of each in a folder, but for hidden ones; empty: there is none."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    seen = {str(file.relative_to(path)): file for file in files}
    return {
        name: hashlib.blake2b(file.read_bytes()).hexdigest()
        for name, file in seen.items()
        if not any(part.startswith(".") for part in Path(name).parts)
    }
