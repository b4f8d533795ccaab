"""`python -m analysis experiment`: medians of each cell of an experiment, its energy, and which runs failed.

python -m launch experiment status NAME      the same, with the runs that are planned and missing
"""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.output.finding import Finding, add_show_options, show
from analysis.output.options import add_parser
from analysis.output.tables import Table
from analysis.runs.reading import load_runs
from analysis.runs.table import RunRow, runs_in
from common.distributed.console import counted
from common.errors import UserError
from common.measurement.energy import EnergyRecord
from common.measurement.interference import Interference
from common.run_folder.experiment_status import STATUSES, ExperimentStatus, PlannedRunStatus
from common.run_folder.records import World
from common.utils.command_line import path, word
from common.utils.whole_files import read_bytes

# Heading of a column -> format of its medians.
MEDIANS = {"training, s": ".1f", "images/s": ",.0f", "test accuracy": ".4f", "MB per rank": ",.0f",
           "cores per rank": ".2f"}  # fmt: skip
ENERGY = ["energy, J", "EDP, J s", "ED2P, J s2"]
ALL_ENERGY = [*ENERGY, *(f"{heading}, idle GPUs too" for heading in ENERGY)]
_NOT_FINISHED = ("running", "failed", "to do", "left out")


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(commands, "experiment", run, "medians of each cell of an experiment, and its failed runs")
    parser.add_argument("folder", metavar="FOLDER", type=path, help="of the experiment, such as runs/smoke")
    parser.add_argument("--status", type=word, metavar="FILE", help="JSON of the planned runs; -: standard input")
    parser.add_argument("--base", metavar="CELL", help="divide energy and EDP by this cell's (default: first metered)")
    add_show_options(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    status = None
    if options.status is not None:
        text = sys.stdin.buffer.read() if options.status == "-" else read_bytes(Path(options.status))
        status = STATUSES.parse(text, place="this")
    show(find(options.folder, status=status, base=options.base), options)


def find(folder: Path, *, status: ExperimentStatus | None = None, base: str | None = None) -> Finding:
    """Return the medians of each cell.

    Args:
        folder: of the experiment; it need not exist where the status says that nothing is finished.
        status: of the planned runs; None: as the run folders show it.
        base: cell by whose energy and EDP those of all are divided; None: the first that was metered.

    Raises:
        UserError: there are no runs, or no such cell.
    """
    wanted = status is None or any(one.state == "finished" for one in status.runs)
    loaded = runs_in(load_runs([folder]).runs) if wanted else []
    # Without a status the folder may hold several experiments, with runs of the same names.
    places = {os.path.relpath(run.folder, folder): run for run in loaded}
    runs = {run.name if place == "." else place: run for place, run in places.items()}
    planned = status.runs if status else [_status_of(name, run) for name, run in runs.items()]
    rows = [
        {"cell": one.cell, "state": one.state, **(_figures(runs[one.name]) if one.name in runs else {})}
        for one in planned
    ]
    frame = pd.DataFrame(rows, columns=["cell", "state", *MEDIANS, "metered", "complete", *ALL_ENERGY])
    cells = list(frame["cell"].unique())
    if base is not None and base not in cells:
        raise UserError(f"no cell has this name. Received: --base {base}. Choose from: {', '.join(cells)}")
    cells_frame = frame.groupby("cell", sort=False)
    medians, means = cells_frame[[*MEDIANS]].median(), cells_frame[ALL_ENERGY].mean()
    energy, notes = _energy_table(frame, means, base=base)
    finished = int((frame["state"] == "finished").sum())
    return Finding(
        name="experiment",
        question="What has the experiment shown so far?",
        answer=f"{finished} of {counted(len(frame), 'run')} finished.",
        tables=[_cells_table(frame, medians), *energy],
        flags=[
            *(f"failed: {one.name}: {one.reason}" for one in planned if one.state == "failed"),
            *([_at_once(counts)] if len(counts := _counts_at_once(runs.values())) > 1 else []),
        ],
        notes=[*notes, *([_at_once(counts)] if counts and max(counts) > 1 and len(counts) == 1 else [])],
    )


def _counts_at_once(runs: Iterable[RunRow]) -> list[int]:
    """Return how many runs were made at once, of those whose times are shown."""
    worlds = [run.record.world for run in runs if run.timed]
    return sorted({world.at_once for world in worlds if isinstance(world, World)})


def _at_once(counts: Sequence[int]) -> str:
    numbers = " and ".join(map(str, counts))
    return f"these runs were made {numbers} at once: times compare only among runs of one such number"


def _status_of(name: str, run: RunRow) -> PlannedRunStatus:
    cell = re.sub(r"-r[0-9]+$", "", name)
    if run.state == "finished" or run.state == "running":
        return PlannedRunStatus(name=name, cell=cell, state=run.state)
    return PlannedRunStatus(name=name, cell=cell, state="failed", reason=run.state)


def _figures(run: RunRow) -> dict[str, float]:
    """Return the numbers of a run by the headings of their columns; times only if the run counts for time."""
    if run.state != "finished":
        return {}
    isolation, energy = run.record.isolation, run.record.energy
    figures = {"test accuracy": run.test_accuracy}
    if run.timed:
        figures |= {"training, s": run.training_seconds, "images/s": run.images_per_second}
        if isinstance(isolation, Interference):
            figures["MB per rank"] = 1e-6 * float(np.mean(isolation.peak_memory_bytes))
            figures["cores per rank"] = float(np.mean(isolation.busy_cores)) if isolation.busy_cores else np.nan
    if isinstance(energy, EnergyRecord):
        totals = (energy.used_devices, energy.all_devices)
        values = [value for one in totals
                  for value in (one.joules, one.edp_joule_seconds, one.ed2p_joule_square_seconds)]  # fmt: skip
        known = [np.nan if value is None else value for value in values]
        figures |= {"metered": 1.0, "complete": float(energy.used_devices.complete)}
        figures |= dict(zip(ALL_ENERGY, known, strict=True))
    return figures


def _cells_table(frame: pd.DataFrame, medians: pd.DataFrame) -> Table:
    rows = []
    for cell, of_cell in frame.groupby("cell", sort=False):
        counts = of_cell["state"].value_counts()
        others = ", ".join(f"{counts[state]} {state}" for state in _NOT_FINISHED if state in counts)
        finished = f"{counts.get('finished', 0)}/{len(of_cell)}"
        rows.append([cell, finished, others, *_known(medians.loc[cell, list(MEDIANS)])])
    return Table("Medians of each cell", ["cell", "finished", "other runs", *MEDIANS], rows, MEDIANS)


def _energy_table(frame: pd.DataFrame, means: pd.DataFrame, *, base: str | None) -> tuple[list[Table], list[str]]:
    """Return the table of metered runs and notes; products are of each run, and means over runs, as `energy` takes."""
    metered = frame[frame["metered"] == 1.0]
    measured = means.loc[metered["cell"].unique()].dropna(subset=[ENERGY[0]])
    notes = [
        f"metered, but nothing could be measured: {cell}"
        for cell in metered["cell"].unique()
        if cell not in measured.index
    ]
    if measured.empty:
        return [], notes
    chosen = base or measured.index[0]
    ratios = measured[ENERGY[:2]].copy()
    if chosen in measured.index:
        ratios = ratios / ratios.loc[chosen]
    else:
        ratios[:] = np.nan
        notes.append(f"no energy of {chosen} was measured: nothing is divided by it")
    rows = []
    for cell in measured.index:
        of_cell = metered[metered["cell"] == cell]
        devices = "all" if of_cell["complete"].all() else "some"
        rows.append([cell, len(of_cell), devices, *_known(measured.loc[cell, ALL_ENERGY]), *_known(ratios.loc[cell])])
    headings = ["cell", "metered runs", "devices measured", *ALL_ENERGY, "energy / base", "EDP / base"]
    formats = {"metered runs": "d", **dict.fromkeys(ALL_ENERGY, ".4g"), "energy / base": ".4f", "EDP / base": ".4f"}
    return [Table(f"Energy of metered runs, means; base: {chosen}", headings, rows, formats)], notes


def _known(values: pd.Series) -> list[float | None]:
    """Return numbers for a table, None where one is not known."""
    return [None if np.isnan(value) else float(value) for value in values]
