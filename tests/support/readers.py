"""Every reader of files, and what writes a valid file for it."""

import gzip
import io
import json
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path

import numpy as np
from builders import forget_hashes, make_trace, write_finished_run
from fuzzing import ODD_NAMES, Reader
from PIL import Image

from common.checks.chaos_record import Trial, add_trial, read_trials
from common.checks.parity_record import read_parity
from common.config import parse_command_line
from common.data import formats
from common.data.catalog import PUBLISHED
from common.data.images.folder import load_images
from common.data.images.prepare import Settings, prepare
from common.data.images.prepared_file import load_prepared
from common.data.images.rows import parse_shares
from common.data.sources import find_arrays, read_files
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
from launch.experiments.experiment_file import read_experiment_file
from launch.offline import bundle
from launch.search.search_file import read_search_file
from launch.sites.site_files import read_launch_site
from launch.starting.launchers import read_host_file

RANDOM = np.random.default_rng(1)
SPEC = model_spec("dense500", input_shape=(1, 2, 2), outputs=2)
SHIPPED = ROOT / "launch"
FILE_ERRORS = (OSError, EOFError, ValueError, tarfile.TarError, zlib.error)
PICKLES = [Path(name).stem for name in formats.CIFAR_FILES]


def written(name, content):
    """Return what writes a file: bytes."""
    return written_alike([name], lambda: content)


def written_alike(names, content):
    """Return what writes files of drawn content; the first is damaged."""

    def write(folder):
        for name in names:
            (folder / name).write_bytes(content())
        return folder / names[0]

    return write


def copied(source):
    return lambda folder: Path(shutil.copyfile(source, folder / source.name))


def of_run(name):
    return lambda folder: write_finished_run(folder / "run") / name


def of_power(folder):
    write_power(folder / "power.csv", [make_trace({"training": 3}, {"gpu0": {"training": 70.0}})])
    return folder / "power.csv"


def of_weights(folder):
    save_weights(folder / "w.safetensors", {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(4, np.float32)})
    return folder / "w.safetensors"


def of_checkpoint(name):
    """A checkpoint of an earlier version, without hashes, by which most of the damage would be found."""

    def write(folder):
        rank = PartialEpoch(own_steps=2, state={"losses": np.ones(2)}, weights={"a.b": np.ones(1)})
        save_checkpoint(folder, Checkpoint(1, 3, draw_initial_weights(SPEC, seed=1), {}, [rank, rank]))
        (checkpoint,) = checkpoint_folders(folder)
        forget_hashes(checkpoint)
        return checkpoint / name

    return write


def of_parity(folder):
    record = json.loads((ROOT / "analysis" / "data" / "parity" / "parity.json").read_text())
    record |= {"comparisons": record["comparisons"][:3], "curves": record["curves"][:1]}
    (folder / "parity.json").write_text(json.dumps(record))
    return folder / "parity.json"


def of_trials(folder):
    trial = Trial(
        number=0, framework="torch", way="mpi", kind="SIGKILL", victim="1", after_seconds=1.0, epochs_before=1,
        ended_seconds=1.0, hung=False, is_readable=True, is_kept=True, starts=2, is_equal=True, left_behind=[],
        traceback=False,
    )  # fmt: skip
    add_trial(folder, trial)
    add_trial(folder, trial)
    return folder / "trials.jsonl"


def of_manifest(folder):
    manifest = {"format": bundle.FORMAT, "files": [], "datasets": ["mnist"], "try_dataset": "mnist"}
    manifest |= {"target": {"architecture": "x86_64", "glibc": "glibc2.36"}}
    manifest |= {"setup": {"wheels": "none", "frameworks": ["torch"], "gpu": False}}
    content = {"sha256": bundle.sha256_of_manifest(manifest), "manifest": manifest}
    (folder / bundle.MANIFEST).write_text(json.dumps(content))
    return folder / bundle.MANIFEST


def idx():
    labels = np.arange(2)
    return formats.idx_from_arrays((RANDOM.integers(0, 256, (2, 28, 28, 1), np.uint8), labels, labels, labels))


def cifar():
    images, labels = RANDOM.integers(0, 256, (5, 32, 32, 3), np.uint8), np.arange(5)
    return formats.cifar_from_arrays((images, labels, images, labels))


def tar_of(contents, *, mode):
    """Return an archive of these files: name -> bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def picture(kind, size=(16, 12)):
    image = io.BytesIO()
    Image.fromarray(RANDOM.integers(0, 256, (size[1], size[0], 3), np.uint8)).save(image, kind)
    return image.getvalue()


def of_images(kind):
    def write(folder):
        for number, name in enumerate("abab"):
            (folder / "images" / name).mkdir(parents=True, exist_ok=True)
            (folder / "images" / name / f"{number}.{kind}").write_bytes(picture(kind))
        return folder / "images" / "a" / f"0.{kind}"

    return write


def of_prepared(folder):
    shares = parse_shares("50/0/50")
    settings = Settings(image_shape=(4, 4, 3), pixels="uint8", shares=shares, seed=1, skip_broken=False)
    prepare(above(of_images("png")(folder)), folder / "prepared", settings)
    return folder / "prepared"


def parent(file):
    return file.parent


def above(file):
    return file.parent.parent


def run_of(checkpoint_file):
    return checkpoint_file.parents[2]


def read_recipe(path):
    return parse_command_line(["--recipe", str(path)], program="train.py")


def read_checkpoint(folder):
    return load_newest_checkpoint(folder, spec=SPEC, recorded_epochs=1)


def read_images(path):
    return load_images(path, name="images")


def read_prepared(path):
    return load_prepared(path, name="prepared")


def read_published(name, folder):
    return find_arrays(name, PUBLISHED[name], folder)


def read_mnist(folder):
    return read_files(PUBLISHED["mnist"].packagings[0], folder)


def read_cifar(folder):
    return read_files(PUBLISHED["cifar10"].packagings[0], folder)


def unpack_bundle(archive):
    with tempfile.TemporaryDirectory() as folder, bundle.unpacked(archive, near=Path(folder)) as unpacked:
        return list(unpacked.rglob("*"))


BUNDLE = tar_of({"bundle/a": b"abc" * 400, "bundle/b": b""}, mode="w")
CIFAR_ARCHIVE = {f"cifar-10-batches-bin/{name}": content for name, content in cifar().items()}
IDX_FILE = gzip.compress(idx()[formats.IDX_FILES[0]])
IN_FOLDERS = {
    "run.json": (of_run("run.json"), read_run),
    "epochs.jsonl": (of_run("epochs.jsonl"), read_run),
    "search.json": (copied(ROOT / "analysis/data/search/search.json"), read_search),
    "parity.json": (of_parity, read_parity),
    "trials.jsonl": (of_trials, read_trials),
    "manifest": (of_manifest, bundle.read_manifest),
}
PUBLISHED_FILES = {
    "idx.gz": (written_alike([f"{name}.gz" for name in formats.IDX_FILES], lambda: IDX_FILE), read_mnist),
    "CIFAR archive": (written("cifar-10-binary.tar.gz", tar_of(CIFAR_ARCHIVE, mode="w:gz")), read_cifar),
}
TOML = {
    "recipe": (copied(SHIPPED / "recipes/pydtnn-mnist.toml"), read_recipe),
    "experiment": (
        copied(SHIPPED / "experiments/shipped/averaging.toml"),
        lambda path: read_experiment_file(str(path), runs_folder=path.parent),
    ),
    "search": (
        copied(SHIPPED / "search/shipped/search.toml"),
        lambda path: read_search_file(str(path), runs_folder=path.parent),
    ),
    "site": (copied(SHIPPED / "sites/slurm.toml"), lambda path: read_launch_site(str(path))),
    "machines": (copied(SITES_FILE), read_sites),
}
READERS = [
    Reader("power.csv", of_power, read_power),
    Reader("safetensors", of_weights, load_weights),
    Reader("hosts", written("hosts", b"node1 slots=4\nnode2:2  # a remark\n"), read_host_file),
    Reader("prepared images", of_prepared, read_prepared, odd_names=ODD_NAMES[:2]),
    *(Reader(name, write, read, given=parent) for name, (write, read) in IN_FOLDERS.items()),
    *(Reader(name, write, read, FILE_ERRORS, parent) for name, (write, read) in PUBLISHED_FILES.items()),
    *(Reader(name, of_checkpoint(name), read_checkpoint, given=run_of) for name in ("state.json", "ranks.safetensors")),
    *(Reader(kind, of_images(kind), read_images, given=above) for kind in ("png", "jpeg", "webp", "bmp")),
    *(Reader(name, write, read, cost=5 if name == "search" else 1) for name, (write, read) in TOML.items()),
    Reader("bundle", written("a.tar", BUNDLE), unpack_bundle, (UserError, OSError), zeros_follow=True),
]
