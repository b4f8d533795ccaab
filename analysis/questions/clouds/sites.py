"""The same experiment on several sites: runs grouped that differ only in where they were made."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis.runs.cells import Cell, cells_of, with_words
from analysis.runs.settings import SERIES
from analysis.stats.inference import Effect, ratio

# Columns that may differ from site to site; every other setting has to be the same.
_OF_SITE = (SERIES, "site", "machine", "device", "threads", "hosts")


@dataclass(frozen=True)
class SiteComparison:
    """Runs of the same settings on one or several sites.

    Attributes:
        label: framework and settings.
        cells: name -> its runs; the name is the site's, with device, machine or threads where that is not enough.
        bases: names of the cells on the base site, by which others are divided; empty: no runs there.
    """

    label: str
    cells: Mapping[str, Cell]
    bases: Sequence[str]

    def base_of(self, name: str) -> str | None:
        """Return the name of the cell that one is divided by; for the first on the base site that is itself.

        Of several on the base site it is the one with the same device, for cells elsewhere; else the first.
        """
        if not self.bases or name in self.bases:
            return self.bases[0] if self.bases else None
        device = self.cells[name].first.device
        return next((base for base in self.bases if self.cells[base].first.device == device), self.bases[0])

    def base_cell(self, name: str) -> Cell | None:
        """Return the runs that those of a cell are compared with; None: there are none, or it is the base itself."""
        base = self.base_of(name)
        return None if base is None or base == name else self.cells[base]

    def ratio_to_base(self, name: str) -> Effect | None:
        """Return training time / that of its base; None for the base itself."""
        base = self.base_cell(name)
        return ratio(times_of(self.cells[name]), times_of(base)) if base else None


def site_comparisons(runs: pd.DataFrame, *, base: str) -> list[SiteComparison]:
    """Group runs that differ only in where they were made, in the order in which they come."""
    return [_comparison(cell, base=base) for cell in cells_of(runs, without=_OF_SITE)]


def _comparison(whole: Cell, *, base: str) -> SiteComparison:
    by_site: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells_of(whole.runs):
        by_site[cell.first.site].append(cell)
    cells = {}
    for site, of_site in by_site.items():
        for cell in with_words(of_site):
            name = f"{site}, {cell.words}" if cell.words else site
            cells[name] = replace(whole, runs=cell.runs, words=", ".join(part for part in (whole.words, name) if part))
    return SiteComparison(whole.name, cells, [name for name, cell in cells.items() if cell.first.site == base])


def times_of(cell: Cell) -> dict[Hashable, float]:
    """Return training seconds by the key that pairs runs."""
    return cell.seconds("training_seconds")
