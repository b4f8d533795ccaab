"""The same experiment on several sites: runs grouped that differ only in where they were made."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis.runs.cells import Cell, cells_of, with_words
from analysis.runs.settings import ONEDNN_IN_FORCE, SERIES, UNKNOWN, kind_of_device
from analysis.stats.inference import Effect, ratio
from common.run_folder.records import RunRecord, World

LAUNCHER = "launcher"  # a column of the runs here: it keeps them apart within a site
# How a site runs an experiment: columns that may differ from site to site. Every other setting has to be the same.
VARIANT = ("machine", "device", "hosts", "threads", LAUNCHER, "controller")
_STARTS = (LAUNCHER, "controller")
_OF_SITE = (SERIES, "site", ONEDNN_IN_FORCE, *VARIANT)


@dataclass(frozen=True)
class SiteComparison:
    """Runs of the same settings on one or several sites.

    Attributes:
        label: framework and settings.
        cells: name -> its runs; the name is the site's, with device, machine, launcher ... where that is not enough.
        bases: names of the cells on the base site, by which others are divided; empty: no runs there.
    """

    label: str
    cells: Mapping[str, Cell]
    bases: Sequence[str]

    @property
    def has_several(self) -> bool:
        """Whether there are several sites, or machines of one; launch methods of one machine are another question."""
        places = [(cell.first.site, variant_of(cell)) for cell in self.cells.values()]
        return len({(site, *(of[column] for column in VARIANT if column not in _STARTS)) for site, of in places}) > 1

    def base_of(self, name: str) -> str | None:
        """Return the name of the cell that one is divided by; for the first on the base site that is itself.

        Of several on the base site it is the one with the same device, for cells elsewhere; else the first with one of
        its kind; else the first.
        """
        if not self.bases or name in self.bases:
            return self.bases[0] if self.bases else None
        device = self.cells[name].first.device
        of_bases = {base: self.cells[base].first.device for base in self.bases}
        same = [base for base, other in of_bases.items() if other == device]
        alike = [base for base, other in of_bases.items() if kind_of_device(other) == kind_of_device(device)]
        return [*same, *alike, *self.bases][0]

    def base_cell(self, name: str) -> Cell | None:
        """Return the runs that those of a cell are compared with; None: there are none, or it is the base itself."""
        base = self.base_of(name)
        return None if base is None or base == name else self.cells[base]

    def differs_from_base(self, name: str) -> list[str]:
        """Return which of `VARIANT` differ from the base of a cell."""
        base = self.base_cell(name)
        own, others = (variant_of(cell) for cell in (self.cells[name], base or self.cells[name]))
        return [column for column in VARIANT if own[column] != others[column]]

    def ratio_to_base(self, name: str) -> Effect | None:
        """Return training time / that of its base; None for the base itself."""
        base = self.base_cell(name)
        return ratio(times_of(self.cells[name]), times_of(base)) if base else None


def site_comparisons(runs: pd.DataFrame, *, base: str) -> list[SiteComparison]:
    """Group runs that differ only in where and how they were started, in the order in which they come."""
    runs = runs.assign(**{LAUNCHER: runs["record"].map(_launcher)})
    wholes = cells_of(runs, without=_OF_SITE)
    whole_of = {run.Index: number for number, whole in enumerate(wholes) for run in whole.runs}
    parts: dict[int, list[Cell]] = defaultdict(list)
    for cell in cells_of(runs, also=[LAUNCHER]):
        parts[whole_of[cell.first.Index]].append(cell)
    return [_comparison(whole, parts[number], base=base) for number, whole in enumerate(wholes)]


def _comparison(whole: Cell, parts: Sequence[Cell], *, base: str) -> SiteComparison:
    by_site: dict[str, list[Cell]] = defaultdict(list)
    for cell in parts:
        by_site[cell.first.site].append(cell)
    cells = {}
    for site, of_site in by_site.items():
        for cell in with_words(of_site):
            name = f"{site}, {cell.words}" if cell.words else site
            cells[name] = replace(whole, runs=cell.runs, words=", ".join(part for part in (whole.words, name) if part))
    return SiteComparison(whole.name, cells, [name for name, cell in cells.items() if cell.first.site == base])


def _launcher(record: RunRecord) -> str:
    return (record.world.launcher if isinstance(record.world, World) else None) or UNKNOWN


def variant_of(cell: Cell) -> dict[str, Hashable]:
    """Return column of `VARIANT` -> its value for the runs of a cell; None: not known."""
    values = {column: getattr(cell.first, column) for column in VARIANT}
    return {column: None if pd.isna(value) else value for column, value in values.items()}


def times_of(cell: Cell) -> dict[Hashable, float]:
    """Return training seconds by the key that pairs runs."""
    return cell.seconds("training_seconds")
