"""Many run folders, read into the tables of runs and epochs; what cannot be used is named and left out."""

import gc
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

from analysis.runs.folders import Found, run_folders
from analysis.runs.table import LoadedRun, Selection, figures_of, select
from common.errors import UserError
from common.run_folder.records import RUN_FILE, read_epochs, read_record, state_of
from common.utils.cores import usable_cores
from common.utils.printable import printable
from common.utils.workers import side_by_side

_MANY = 1000


def load_runs(
    paths: Iterable[Path | str] | Found, *, added: Sequence[LoadedRun] = (), published: Sequence[str] = ()
) -> Selection:
    """Read run folders, and folders of run folders, into a table of runs and a table of epochs.

    Args:
        paths: the folders, or what was found in them.
        added: further runs, which are on no disk, after those.
        published: the documents that these come from.

    Raises:
        UserError: a path does not exist, or there is not one run in any of them.
    """
    found_in = paths if isinstance(paths, Found) else run_folders(paths)
    folders = found_in.folders
    shares = usable_cores() if len(folders) >= _MANY else 1
    gc.disable()  # it would look through the objects of thousands of runs again and again: a third of the time
    try:
        parts = side_by_side(_load_all, [folders[share::shares] for share in range(shares)])
    finally:
        if len(folders) < _MANY:  # nor look through them and millions of rows of tables while they are compared
            gc.enable()
    found = [one for turn in zip_longest(*parts) for one in turn if one is not None]  # in the order of the folders
    loaded = [one for one in found if isinstance(one, LoadedRun)]
    left_out = [one for one in found if isinstance(one, str)]
    if not loaded:
        reason = left_out[0] if left_out else f"no {RUN_FILE} in {', '.join(str(path) for path in found_in.paths)}"
        raise UserError(
            f"there are no runs to look at. Received: {reason}. Name run folders, or folders that hold some"
        )
    left_out += [f"left out: no {RUN_FILE} in {path}" for path in found_in.empty]
    return select([*loaded, *added], left_out=left_out, published=published)


def _load_all(folders: Iterable[Path]) -> list[LoadedRun | str]:
    """Read run folders; in the place of one that cannot be used, the reason."""
    found: list[LoadedRun | str] = []
    for folder in folders:
        try:
            found.append(_load_run(folder))
        except UserError as error:
            found.append(printable(f"left out: {error}"))
    return found


def _load_run(folder: Path) -> LoadedRun:
    """Read and validate a run folder.

    Raises:
        UserError: no run folder, one that does not follow the schema, or one whose name is not text.
    """
    if printable(folder.name) != folder.name:
        raise UserError(
            f"the name of a run folder has control characters or is not UTF-8. Received: {folder}. Rename it"
        )
    record = read_record(folder)
    return LoadedRun(folder, record, state_of(record), figures_of(read_epochs(folder)))
