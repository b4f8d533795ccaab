"""What goes into a bundle: the project's code, data sets, weights and prepared images. Wheels: `wheels.py`."""

import io
import subprocess
import tarfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from common.data import cache as dataset_cache
from common.data.catalog import PUBLISHED
from common.data.loading import load_dataset
from common.errors import UserError, expanded
from launch.offline import bundle
from launch.offline.packing import BundledFile

PREPARED = "prepared:"
SHOWN = 3  # names of changed files in an error


def code_sources(root: Path, place: Path, *, uncommitted: bool) -> list[BundledFile]:
    """Return the project's files: as committed; where it is no checkout of git, all that .gitignore does not name.

    Args:
        root: of the project.
        place: an empty folder, for files as they were committed.
        uncommitted: take the files of the working tree, changes included.

    Raises:
        UserError: there are changes that are not committed.
    """
    is_checkout = (root / ".git").exists()
    if uncommitted or not is_checkout:
        repository = []
        if not is_checkout:  # an empty repository, so that git reads .gitignore
            _git(place, "init", "--quiet", "--bare", "empty.git")
            repository = [f"--git-dir={place / 'empty.git'}", f"--work-tree={root}"]
        listing = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        names = [name for name in _git(root, *repository, *listing).decode().split("\0") if (root / name).is_file()]
    else:
        _require_committed(root)
        with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", "--format=tar", "HEAD"))) as archive:
            archive.extractall(place)  # written by git a moment ago
        root, names = place, sorted(bundle.files_of(place))
    return [BundledFile(file=root / name, path=f"code/{name}") for name in names]


def _require_committed(root: Path) -> None:
    changed = [line[3:] for line in _git(root, "status", "--porcelain").decode().splitlines()]
    if changed:
        more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        raise UserError(
            f"there are changes that are not committed. Received: {', '.join(changed[:SHOWN])}{more}. Commit them, or "
            "pack the files of the working tree: --uncommitted"
        )


def _git(root: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False)
    except FileNotFoundError:
        raise UserError(f"this folder is a checkout of git. Received: {root}, and no git here. Install it") from None
    if done.returncode != 0:
        output = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        raise UserError(f"git {arguments[0]} failed. Received: {output[0]}. Repair the checkout in {root}")
    return done.stdout


def dataset_sources(names: list[str]) -> list[BundledFile]:
    """Return the files of data sets: entries of the cache, fetched first if needed, and prepared images.

    Raises:
        UserError: a data set that cannot be fetched or packed, or a damaged one.
    """
    sources = []
    for name in names:
        if name.startswith(PREPARED):
            load_dataset(name)  # reads and checks it
            sources.append(_input(expanded(name.removeprefix(PREPARED))))
            continue
        if name not in PUBLISHED:
            raise UserError(
                f"packed are published data sets and prepared images. Received: {name}. Synthetic data needs no files; "
                "prepare a folder of images first: python -m common images prepare"
            )
        load_dataset(name)
        _require_whole(name)
        folder = dataset_cache.datasets_folder() / name
        sources += [BundledFile(file=path, path=f"datasets/{name}/{path.name}") for path in sorted(folder.iterdir())]
    return sources


def _require_whole(name: str) -> None:
    try:
        dataset_cache.load_entry(name, name=name, full_check=True)
    except dataset_cache.DamagedEntryError as error:
        folder = dataset_cache.datasets_folder() / name
        raise UserError(f"the data set is damaged. Received: {folder}, {error}. Remove that folder") from None


def weights_sources(files: list[Path]) -> list[BundledFile]:
    """Return weights files, each read far enough to know that it is one.

    Raises:
        UserError: a file that is missing or no weights file.
    """
    sources = []
    for file in map(expanded, files):
        try:
            with safe_open(file, "numpy") as weights:
                weights.keys()
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"this is not a weights file. Received: {file} ({error}). Name a .safetensors file of a run"
            ) from None
        sources.append(_input(file))
    return sources


def _input(file: Path) -> BundledFile:
    return BundledFile(file=file, path=f"inputs/{file.name}")


def require_different_names(sources: list[BundledFile]) -> None:
    """Raise UserError if two files would have the same path."""
    seen: dict[str, Path] = {}
    for source in sources:
        if bundle.problem_of_path(source.path):
            raise UserError(f"no bundle can hold a file of this name. Received: {source.file}. Rename it")
        if source.path in seen:
            raise UserError(
                f"two files would have one name. Received: {seen[source.path]} and {source.file}. Rename one of them"
            )
        seen[source.path] = source.file
