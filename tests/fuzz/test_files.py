"""Damaged and hostile files for every reader: one line for people or a good answer, in bounded time, nothing written.

See `tests/support/fuzzing.py` for how valid files are changed.
What broke once is in BROKE_TOML.
"""

import json
import shutil

import numpy as np
import pytest
from builders import forget_hashes, make_trace, write_finished_run
from fuzzing import Reader, check_damaged, check_odd, check_sparse, one_line

from common.checks.chaos_record import Trial, add_trial, read_trials
from common.checks.parity_record import read_parity
from common.config import parse_command_line
from common.data.formats import FormatError, load_arrays_pickle
from common.errors import UserError
from common.model.specs import model_spec
from common.model.weights import draw_initial_weights, load_weights, save_weights
from common.run_folder.checkpoints import (
    Checkpoint,
    PartialEpoch,
    checkpoint_folders,
    load_newest_checkpoint,
    save_checkpoint,
)
from common.run_folder.power_file import read_power, write_power
from common.run_folder.records import read_run
from common.run_folder.search_record import read_search
from common.sites.table import SITES_FILE, read_sites
from common.utils.paths import ROOT
from common.utils.whole_files import read_bytes
from launch.experiments.experiment_file import read_experiment_file
from launch.offline import bundle
from launch.search.search_file import read_search_file
from launch.sites.site_files import read_launch_site
from launch.starting.launchers import read_host_file


def of_run(name):
    def write(folder):
        run = write_finished_run(folder / "run")
        return run / name, run

    return write


def copied(source):
    def write(folder):
        target = folder / source.name
        shutil.copyfile(source, target)
        return target, target

    return write


def text(name, content):
    def write(folder):
        (folder / name).write_text(content)
        return folder / name, folder / name

    return write


def of_power(folder):
    write_power(folder / "power.csv", [make_trace({"training": 3}, {"gpu0": {"training": 70.0}})])
    return folder / "power.csv", folder / "power.csv"


def of_weights(folder):
    save_weights(folder / "w.safetensors", {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(4, np.float32)})
    return folder / "w.safetensors", folder / "w.safetensors"


def of_checkpoint(name):
    """A checkpoint of an earlier version, without hashes, by which most of the damage would be found."""

    def write(folder):
        rank = PartialEpoch(own_steps=2, state={"losses": np.ones(2)}, weights={"a.b": np.ones(1)})
        save_checkpoint(folder, Checkpoint(1, 3, draw_initial_weights(SPEC, seed=1), {}, [rank, rank]))
        (checkpoint,) = checkpoint_folders(folder)
        forget_hashes(checkpoint)
        return checkpoint / name, folder

    return write


def of_search(folder):
    shutil.copyfile(ROOT / "analysis" / "data" / "search" / "search.json", folder / "search.json")
    return folder / "search.json", folder


def of_parity(folder):
    record = json.loads((ROOT / "analysis" / "data" / "parity" / "parity.json").read_text())
    record |= {"comparisons": record["comparisons"][:3], "curves": record["curves"][:1]}
    (folder / "parity.json").write_text(json.dumps(record))
    return folder / "parity.json", folder


def of_trials(folder):
    for number in range(2):
        add_trial(
            folder,
            Trial(
                number=number, framework="torch", way="mpi", kind="SIGKILL", victim="1", after_seconds=1.0,
                epochs_before=1, ended_seconds=1.0, hung=False, is_readable=True, is_kept=True, starts=2,
                is_equal=True,
                left_behind=[], traceback=False,
            ),
        )  # fmt: skip
    return folder / "trials.jsonl", folder


def of_bundle(folder):
    manifest = {"format": bundle.FORMAT, "files": [], "datasets": ["mnist"], "try_dataset": "mnist"}
    manifest |= {"target": {"architecture": "x86_64", "glibc": "glibc2.36"}}
    manifest |= {"setup": {"wheels": "none", "frameworks": ["torch"], "gpu": False}}
    written = {"sha256": bundle.sha256_of_manifest(manifest), "manifest": manifest}
    (folder / bundle.MANIFEST).write_text(json.dumps(written))
    return folder / bundle.MANIFEST, folder


def of_pickle(folder):
    import pickle

    (folder / "a.pickle").write_bytes(pickle.dumps({"data": np.arange(6), "labels": [1, 2]}))
    return folder / "a.pickle", folder / "a.pickle"


def read_recipe(path):
    return parse_command_line(["--recipe", str(path)], program="train.py")


def read_checkpoint(folder):
    return load_newest_checkpoint(folder, spec=SPEC, recorded_epochs=1)


SPEC = model_spec("dense500", input_shape=(1, 2, 2), outputs=2)
SHIPPED = ROOT / "launch"
READERS = [
    Reader("run.json", of_run("run.json"), read_run),
    Reader("epochs.jsonl", of_run("epochs.jsonl"), read_run),
    Reader("power.csv", of_power, read_power),
    Reader("safetensors", of_weights, load_weights),
    Reader("state.json", of_checkpoint("state.json"), read_checkpoint),
    Reader("ranks.safetensors", of_checkpoint("ranks.safetensors"), read_checkpoint),
    Reader("search.json", of_search, read_search),
    Reader("parity.json", of_parity, read_parity),
    Reader("trials.jsonl", of_trials, read_trials),
    Reader("recipe", copied(SHIPPED / "recipes" / "pydtnn-mnist.toml"), read_recipe),
    Reader(
        "experiment",
        copied(SHIPPED / "experiments" / "shipped" / "averaging.toml"),
        lambda path: read_experiment_file(str(path), runs_folder=path.parent),
    ),
    Reader(
        "search",
        copied(SHIPPED / "search" / "shipped" / "search.toml"),
        lambda path: read_search_file(str(path), runs_folder=path.parent),
        cost=5,
    ),
    Reader("site", copied(SHIPPED / "sites" / "slurm.toml"), lambda path: read_launch_site(str(path))),
    Reader("machines", copied(SITES_FILE), read_sites),
    Reader("hosts", text("hosts", "node1 slots=4\nnode2:2  # a remark\n"), read_host_file),
    Reader("bundle", of_bundle, bundle.read_manifest),
    Reader("pickle", of_pickle, lambda path: load_arrays_pickle(read_bytes(path)), (FormatError, OSError)),
]


@pytest.mark.ci
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_damaged_file_is_one_line_or_an_answer(reader, tmp_path):
    check_damaged(reader, tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_odd_content_alone_is_one_line_or_an_answer(reader, tmp_path):
    check_odd(reader, tmp_path)


# What broke once: it ended in a traceback, or took all memory.
BROKE_TOML = {
    "levels": b"a = " + b"[\n" * 10_000,
    "tables": b"a = " + b"{a=" * 3000,
    "a key of many parts": b"a." * 100_000 + b"a = 1",
    "keys": b".".join([b"a"] * 2000) + b" = 1",
    "digits": b"a = " + b"9" * 5000,
    "hexadecimal digits": b"a = 0x" + b"f" * 9000,
}
TOML = ("recipe", "experiment", "search", "site", "machines")


@pytest.mark.parametrize("content", BROKE_TOML.values(), ids=BROKE_TOML)
@pytest.mark.parametrize("reader", [one for one in READERS if one.name in TOML], ids=lambda reader: reader.name)
def test_toml_without_end_is_one_line(reader, content, tmp_path):
    file, given_path = reader.write(tmp_path)
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"^[^\n]+\Z"):
        reader.read(given_path)


@pytest.mark.ci
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_large_sparse_file_is_one_line_and_takes_no_memory(reader, tmp_path):
    check_sparse(reader, tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_name_that_no_file_can_have_is_one_line(reader, tmp_path):
    reader.write(tmp_path)
    for name in ("zero\0byte.toml", "half\ud800.toml", "n" * 300 + ".toml"):
        with one_line((*reader.allowed, OSError)):  # of which `run_command` makes a line, too
            reader.read(tmp_path / name)
