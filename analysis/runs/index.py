"""The figures of epochs, kept beside the run folders they come from: thousands of runs are read quickly a second time.

A file that changed since, by its time or size, is read anew. The index can be deleted at any time; where it cannot be
written there is none.
"""

import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.run_folder.records import EPOCHS_FILE
from common.utils.atomic import atomic_file

INDEX_FILE = ".epochs.npz"
FEWEST_RUNS = 200  # fewer are read in no time
Stamp = tuple[int, int]  # see `stamp_of`


class EpochsIndex:
    """The index of one folder of run folders.

    Args:
        folder: it.
        fields: names of the figures, in their order; an index of others is not used.
    """

    def __init__(self, folder: Path, *, fields: list[str]) -> None:
        self._file = folder / INDEX_FILE
        self._fields = fields
        self._found: dict[str, tuple[Stamp, NDArray[np.float64]]] = {}
        self._changed = False
        # What is damaged, of another version or no index at all is made anew.
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(self._file) as stored:
            if stored["fields"].tolist() == fields:
                edges = np.cumsum(stored["epochs"])[:-1]
                parts = np.split(stored["figures"], edges, axis=1)
                stamps = map(tuple, stored["stamps"].tolist())
                self._found = dict(zip(stored["names"].tolist(), zip(stamps, parts, strict=True), strict=True))

    def figures(self, run: Path, stamp: Stamp | None) -> NDArray[np.float64] | None:
        """Return the figures of a run, (fields, epochs) float64; None if they are not known or its file changed."""
        known, figures = self._found.get(run.name, (None, None))
        return figures if stamp is not None and stamp == known else None

    def add(self, run: Path, stamp: Stamp | None, figures: NDArray[np.float64]) -> None:
        """Keep the figures of a run, (fields, epochs) float64, read after its stamp was taken."""
        if stamp is not None:
            self._found[run.name] = stamp, figures
            self._changed = True

    def save(self) -> None:
        """Write the index, if it changed and is worth while, so that a reader sees the old one or the new one."""
        if not self._changed or len(self._found) < FEWEST_RUNS:
            return
        stamps, figures = zip(*self._found.values(), strict=True)
        arrays = {
            "fields": np.array(self._fields),
            "names": np.array(list(self._found)),
            "stamps": np.array(stamps, dtype=np.int64),
            "epochs": np.array([part.shape[1] for part in figures]),
            "figures": np.concatenate(figures, axis=1),
        }
        with suppress(OSError), atomic_file(self._file) as new, new.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)


def stamp_of(run: Path) -> Stamp | None:
    """Return time and size of a run's epochs, in ns and bytes; None without them."""
    try:
        stat = (run / EPOCHS_FILE).stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
