"""The same experiment in several places: runs put together that differ only in where they were made."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from analysis.runs.cells import Cell, cells_of, with_words
from analysis.runs.reading import StudiedRun
from analysis.runs.settings import SERIES, Settings, settings_of
from analysis.stats.inference import Comparison, ratio

# What another place brings with it; everything else has to be the same.
_PLACE = (SERIES, "site", "machine", "device", "threads", "hosts")


@dataclass(frozen=True)
class Experiment:
    """Runs of the same settings on several sites.

    Attributes:
        label: framework and settings.
        places: name -> its runs; the name is the site's, with device, machine or threads where that is not enough.
        bases: names of the places on the base site, by which others are divided; empty: no runs there.
    """

    label: str
    places: Mapping[str, Cell]
    bases: Sequence[str]

    def base_of(self, name: str) -> str | None:
        """Return the place that one is divided by; for the first on the base site that is itself.

        Of several on the base site it is the one with the same device, for places elsewhere; else the first.
        """
        if not self.bases or name in self.bases:
            return self.bases[0] if self.bases else None
        device = self.places[name].runs[0].device
        return next((base for base in self.bases if self.places[base].runs[0].device == device), self.bases[0])

    def base_cell(self, name: str) -> Cell | None:
        """Return the runs that those of a place are held against; None: there are none, or it is the base itself."""
        base = self.base_of(name)
        return None if base is None or base == name else self.places[base]

    def ratio_to_base(self, name: str) -> Comparison | None:
        """Return training time / that of its base; None for the base itself."""
        base = self.base_cell(name)
        return ratio(times_of(self.places[name]), times_of(base)) if base else None


def experiments(runs: Sequence[StudiedRun], *, base: str) -> list[Experiment]:
    """Put together what differs in its place only, in the order in which it comes."""
    groups: dict[tuple[Hashable, ...], list[StudiedRun]] = defaultdict(list)
    settings: dict[tuple[Hashable, ...], Settings] = {}
    for one in runs:
        of_run = {name: value for name, value in settings_of(one).items() if name not in _PLACE}
        key = tuple(of_run.items())
        groups[key].append(one)
        settings[key] = of_run
    return [
        _experiment(cell, base=base)
        for cell in with_words([Cell(settings[key], of_key) for key, of_key in groups.items()])
    ]


def _experiment(whole: Cell, *, base: str) -> Experiment:
    by_site: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells_of(whole.runs):
        by_site[cell.runs[0].site].append(cell)
    places = {}
    for site, cells in by_site.items():
        for cell in with_words(cells):
            name = f"{site}, {cell.words}" if cell.words else site
            places[name] = Cell(whole.settings, cell.runs, ", ".join(part for part in (whole.words, name) if part))
    return Experiment(whole.name, places, [name for name, cell in places.items() if cell.runs[0].site == base])


def times_of(cell: Cell) -> dict[Hashable, float]:
    """Return training seconds by what pairs runs."""
    return cell.seconds(lambda run: run.training_seconds)
