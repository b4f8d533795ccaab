"""Train by a revision before and by the working tree, and see that both give the same weights and records.

    python tests/equality/run.py                   # `make equality`: against HEAD
    python tests/equality/run.py --since REV       # against another revision
    python tests/equality/run.py averaging server  # the rows whose names hold one of these words

`rows.toml` has the runs. Those of a revision are kept in `build/equality/REVISION`, those of the working tree in
`build/equality/working` until a file of the trainers changes; so a call that was stopped goes on where it was.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).with_name("rows.toml")
KEPT = ROOT / "build" / "equality"
TRAINERS = ("common", "torch_impl", "keras_impl", "launch")
FRAMEWORKS = ("torch", "keras")
RUN_SECONDS = 300
# Fields of records that hold a time, a place or a measurement, at any depth: by the last word of the name, or the name.
MEASURED_WORDS = {
    "at", "bytes", "chosen", "fraction", "joules", "milliseconds", "percent", "second", "seconds", "watts",
}  # fmt: skip
MEASURED = {
    "benchmark", "command", "commit", "dirty", "end", "environment", "energy", "folder", "heartbeat", "host", "hosts",
    "interference", "isolation", "load", "process", "profile", "staleness", "revision", "start", "started",
    "tuned_by",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One run, and those that resume it; see rows.toml."""

    name: str
    settings: str
    then: tuple[str, ...] = ()
    before: str = ""
    ranks: int = 1
    launcher: str = "mpirun"
    frameworks: tuple[str, ...] = FRAMEWORKS
    unlike: str = ""

    @property
    def folder(self) -> str:
        return "".join(letter if letter.isalnum() else "_" for letter in self.name)


def read_rows(file: Path = ROWS) -> tuple[list[Row], dict[str, str]]:
    """Return the rows with their settings written out, and the settings that are left out with their reasons."""
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    named = table["settings"]
    rows = []
    for fields in table["row"]:
        row = Row(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
        rows.append(dataclasses.replace(row, settings=in_full(row.settings, named), before=in_full(row.before, named)))
    return rows, table["left_out"]


def in_full(settings: str, named: dict[str, str]) -> str:
    """Return settings in which a name at the start is replaced by what it stands for."""
    first, _, others = settings.partition(" ")
    return f"{in_full(named[first], named)} {others}" if first in named else settings


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def tree_of(revision: str) -> Path:
    """Return a folder with the files of a revision."""
    tree = KEPT / revision / "tree"
    if not tree.exists():
        tree.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "--extract"], cwd=tree, input=archive, check=True)
        (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


def fingerprint(tree: Path) -> str:
    """Return a hash of the files that training depends on."""
    files = sorted(
        path for folder in TRAINERS for path in (tree / folder).rglob("*") if "__pycache__" not in path.parts
    )
    digest = hashlib.sha256()
    for path in files:
        if path.is_file():
            digest.update(str(path.relative_to(tree)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of a program of this tree, in place of the project that is installed."""
    return os.environ | {
        "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(tree),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }


def command_of(row: Row, framework: str, settings: str, *, tree: Path) -> list[str]:
    """Return the command that starts the ranks of a row."""
    program = [sys.executable, str(tree / f"{framework}_impl" / "train.py"), *settings.split()]
    if row.launcher == "elastic":
        launcher = [sys.executable, "-m", "launch", "train", "--framework", framework, "--np", str(row.ranks)]
        return [*launcher, "--elastic", "--", *settings.replace("--elastic", "").split()]
    if row.launcher == "gloo":
        return ["horovodrun", "-np", str(row.ranks), "--gloo", *program]
    return ["mpirun", "-np", str(row.ranks), "--bind-to", "none", *program] if row.ranks > 1 else program


def train(row: Row, framework: str, *, tree: Path, folder: Path, start: Path | None) -> str:
    """Make the runs of a row in a folder; return what went wrong, or an empty string.

    Args:
        start: the run before, which is there already; None: it is made.
    """
    shutil.rmtree(folder, ignore_errors=True)
    write_inputs(folder)
    if row.before and start:
        shutil.copytree(start, folder / "runs" / "start")
    first = f"{row.settings} --name {row.folder}"
    resumed = [f"--resume runs/{row.folder} {settings}" for settings in row.then]
    if row.launcher == "elastic":
        resumed = [f"{settings} --elastic" for settings in resumed]
    earlier = [f"{row.before} --name start"] if row.before and not start else []
    for settings in (*earlier, first, *resumed):
        command = command_of(row, framework, settings.format(folder=folder), tree=tree)
        # A launcher kills its ranks if it is ended in its turn.
        done = subprocess.run(
            ["timeout", "--kill-after", "20", str(RUN_SECONDS), *command], cwd=folder, env=environment(tree),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        (folder / "output.txt").write_text(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}", encoding="utf-8")
        if done.returncode:
            return f"exit code {done.returncode}: {folder / 'output.txt'}"
    return ""


def write_inputs(folder: Path) -> None:
    """Write what rows read beside synthetic samples: images in two classes, a meter of energy."""
    random = np.random.default_rng(1)
    for label in ("cat", "dog"):
        (folder / "images" / label).mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 256, (12, 14, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "images" / label / f"{number}.png")
    zone = folder / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, content in (("name", "package-0"), ("energy_uj", "1000"), ("max_energy_range_uj", "262143328850")):
        (zone / name).write_text(content, encoding="utf-8")


def kept(
    row: Row, framework: str, *, tree: Path, side: Path, turn: int = 0, start: Path | None = None
) -> tuple[Path, str]:
    """Return the folder of a row's run and what went wrong; train unless that was done for these files.

    Args:
        start: the run before, of the other tree: what one tree replays, the other does, too.
    """
    folder = side / f"{framework}-{row.folder}{f'-{turn}' if turn else ''}"
    key = hashlib.sha256(f"{fingerprint(tree)} {row}".encode()).hexdigest()
    mark = folder / "key.txt"
    if mark.exists() and mark.read_text(encoding="utf-8") == key:
        return folder / "runs" / row.folder, ""
    problem = train(row, framework, tree=tree, folder=folder, start=start)
    if not problem:
        mark.write_text(key, encoding="utf-8")
    return folder / "runs" / row.folder, problem


def compared(row: Row, framework: str, *, before: Path, working: Path) -> list[str]:
    """Return how the runs of a row differ between two trees."""
    old, problem = kept(row, framework, tree=before, side=before.parent)
    if problem:
        return [f"before: {problem}"]
    new, problem = kept(row, framework, tree=working, side=KEPT / "working", start=old.with_name("start"))
    if problem:
        return [problem]
    records = list(differing_records(old, new, only_names=bool(row.unlike)))
    if not row.unlike:
        return [*differing_weights(old, new), *records]
    again, problem = kept(row, framework, tree=before, side=before.parent, turn=2)
    spread, distance = distance_of(old, again), distance_of(old, new)
    # Two runs that agree by chance show no spread.
    is_apart = spread > 0 and distance > 2 * spread
    apart = [f"weights are {distance:.2e} apart, two runs before {spread:.2e}"] if is_apart else []
    return [*([problem] if problem else []), *apart, *records]


def differing_weights(old: Path, new: Path) -> list[str]:
    """Return the tensors that are not the same bit for bit."""
    before, after = (load_file(folder / "weights.safetensors") for folder in (old, new))
    if set(before) != set(after):
        return [f"other tensors: {sorted(set(before) ^ set(after))}"]
    return [
        f"{name}: {np.abs(before[name] - after[name]).max():.2e} apart"
        for name in before
        if before[name].tobytes() != after[name].tobytes()
    ]


def distance_of(first: Path, second: Path) -> float:
    """Return the distance of the weights of two runs, relative to the first ones'."""
    a, b = (load_file(folder / "weights.safetensors") for folder in (first, second))
    squares = sum(float(np.square(a[name] - b[name], dtype=np.float64).sum()) for name in a)
    return float(np.sqrt(squares / sum(float(np.square(array, dtype=np.float64).sum()) for array in a.values())))


def differing_records(old: Path, new: Path, *, only_names: bool) -> list[str]:
    """Return the fields of `run.json` and `epochs.jsonl` that differ, but for those that hold a measurement.

    Args:
        only_names: not their values.
    """
    before, after = fields_of(old), fields_of(new)
    missing = [f"{name} is only in one record" for name in sorted(set(before) ^ set(after))]
    if only_names:
        return missing
    both = [name for name in before if name in after and before[name] != after[name]]
    return [*missing, *(f"{name}: {before[name][:80]}, now {after[name][:80]}" for name in both)]


def fields_of(folder: Path) -> dict[str, str]:
    """Return the name of each field of a record, at any depth, and its value as JSON; those of measurements are not."""
    epochs = [json.loads(line) for line in (folder / "epochs.jsonl").read_text(encoding="utf-8").splitlines()]
    record = {"run": json.loads((folder / "run.json").read_text(encoding="utf-8")), "epochs": epochs}
    place = str(folder.parents[1])
    return {name: json.dumps(value).replace(place, "") for name, value in leaves(record)}


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and value of each field below a value, but for measurements."""
    last = name.rpartition(".")[2]
    if last in MEASURED or MEASURED_WORDS & set(last.split("_")):
        return
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from leaves(part, f"{name}[{number}]")
    else:
        yield name, value


def main() -> int:
    """Compare all rows, or those that are named; return 1 if one differs."""
    parser = argparse.ArgumentParser(description="compare the runs of a revision with those of the working tree")
    parser.add_argument("words", nargs="*", help="only rows whose names hold one of these")
    parser.add_argument("--since", default="HEAD", help="the revision before (default: HEAD)")
    parser.add_argument("--framework", choices=FRAMEWORKS, help="only this one")
    given = parser.parse_args()
    before = tree_of(git("rev-parse", "--short=10", given.since))
    rows, _ = read_rows()
    tasks = [
        (row, framework)
        for row in rows
        for framework in row.frameworks
        if given.framework in (None, framework) and (not given.words or any(word in row.name for word in given.words))
    ]
    for tree in (before, ROOT):
        show = [sys.executable, "-c", "import common; print('trees:', common.__file__)"]
        subprocess.run(show, cwd=tree, env=environment(tree), check=True)
    started, failed = time.monotonic(), 0
    with ThreadPoolExecutor(2) as pool:
        futures = {
            pool.submit(compared, row, framework, before=before, working=ROOT): (row, framework)
            for row, framework in tasks
        }
        for number, future in enumerate(as_completed(futures), start=1):
            row, framework = futures[future]
            problems = future.result()
            failed += bool(problems)
            state = "DIFFERS" if problems else "equal" if not row.unlike else f"within the spread ({row.unlike})"
            print(
                f"[{number}/{len(tasks)}, {time.monotonic() - started:.0f} s] {framework} {row.name}: {state}",
                flush=True,
            )
            for problem in problems[:8]:
                print(f"    {problem}", flush=True)
    print(f"{len(tasks) - failed} equal, {failed} differ, {time.monotonic() - started:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
