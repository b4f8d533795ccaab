"""`python -m analysis aa-test`: an A/A test of the comparison of times: its false alarms, and the delays it detects.

Runs of one setting are split at random into two sides and compared as two frameworks would be. Paired: consecutive
runs make a pair, and chance assigns them to the sides, as in an interleaved experiment. Unpaired: chance alone makes
the sides. A delay is injected by multiplying the times of one side.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.output.finding import Finding, Plot, add_question, brief
from analysis.output.plots import IDEAL, framework_style
from analysis.output.tables import Table
from analysis.runs.cells import Cell, cells_of
from analysis.runs.labels import framework_label
from analysis.runs.table import Selection
from analysis.runs.validity import cell_runs, flags_of
from analysis.stats.inference import CONFIDENCE, FEWEST_PAIRS, rank_sum_null, signed_rank_null, walsh_averages

FEWEST_RUNS = 40
MOST_CELLS = 2
MOST_RUNS = 200  # per cell: time and memory grow with their square
SPLITS = 20_000
BATCH = 250  # splits at a time, to limit memory
SEED = 1
DELAY = 0.05
POWER = 0.9


@dataclass(frozen=True)
class Splits:
    """Intervals of the log ratio of the two sides, one per split: (splits,) float64 each.

    A delay shifts the ratio and nothing else, so these give the share of splits that detect it for every delay.
    """

    pairs: int
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def false_alarms(self) -> float:
        """Share of splits in which one side is called faster, though both are the same."""
        return float(np.mean((self.low > 0) | (self.high < 0)))

    def power(self, delay: float) -> float:
        """Share of splits in which an injected delay, as a fraction, is detected."""
        return float(np.mean(self.low + math.log1p(delay) > 0))

    @property
    def smallest_delay(self) -> float:
        """The smallest delay, as a fraction, that is detected in POWER of the splits."""
        return math.expm1(max(0.0, float(np.quantile(-self.low, POWER, method="inverted_cdf"))))


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    add_question(
        commands,
        "aa-test",
        find,
        f"A/A test: how often the comparison is wrong, on runs of one setting (at least {FEWEST_RUNS})",
    )


def find(selection: Selection) -> Finding:
    """Compare every cell of enough runs with itself."""
    cells = cells_of(selection.runs)
    enough = [cell for cell in cells if len(cell.timed) >= FEWEST_RUNS]
    question = "How often is a framework called faster than itself, and which delay is detected?"
    if not enough:
        most = max((len(cell.timed) for cell in cells), default=0)
        answer = (
            f"No setting has the {FEWEST_RUNS} timed runs that an A/A test takes (the most is {most}): "
            "`python -m launch experiment run aa-test` makes them."
        )
        return Finding(name="aa-test", question=question, answer=answer)
    more = len(enough) - MOST_CELLS
    enough = sorted(enough, key=lambda cell: -len(cell.timed))[:MOST_CELLS]
    cut = sum(len(cell.timed) > MOST_RUNS for cell in enough)
    splits = [(cell, paired_splits(seconds(cell)), unpaired_splits(seconds(cell))) for cell in enough]
    return Finding(
        name="aa-test",
        question=question,
        answer=brief([_statement(cell, paired) for cell, paired, _ in splits]),
        tables=[_table(splits), _by_pairs(enough)],
        plots=[_plot(splits)],
        flags=flags_of(cell_runs(enough), enough),
        notes=[
            f"{SPLITS:,} random splits (seed {SEED}) of the same runs each; a delay is injected by multiplying the "
            "times of one side; paired: neighbors in time, as in an interleaved experiment",
            "chance splits the runs, so at most 5 % should be called faster whatever the runs are like: that tests the "
            "comparison; the delay that is detected depends on the noise of the machine; neither shows drift that "
            "affects one side alone, as where the sides do not take turns",
            *([f"{more} more settings have enough runs: only those with the most are shown"] if more > 0 else []),
            *([f"of {cut} settings only the first {MOST_RUNS} runs are used"] if cut else []),
        ],
    )


def seconds(cell: Cell) -> NDArray[np.float64]:
    """Return the training seconds of the first timed runs in the order in which they started, (runs,) float64."""
    in_order = sorted(cell.timed, key=lambda run: getattr(run.record.status, "started_at", ""))
    return np.array([run.training_seconds for run in in_order[:MOST_RUNS]])


def paired_splits(values: NDArray[np.float64]) -> Splits:
    """Return the splits of (runs,) values within pairs of neighbors; an odd one at the end is dropped."""
    random = np.random.default_rng(SEED)
    logs = np.log(values[: len(values) // 2 * 2])
    differences = logs[1::2] - logs[::2]
    pairs = len(differences)
    signs = (random.choice([-1.0, 1.0], size=(BATCH, pairs)) for _ in range(SPLITS // BATCH))
    return _splits(
        pairs, (walsh_averages(differences * some) for some in signs), depth=signed_rank_null(pairs).depth(CONFIDENCE)
    )


def unpaired_splits(values: NDArray[np.float64]) -> Splits:
    """Return the splits of (runs,) values into two halves by chance alone."""
    random = np.random.default_rng(SEED)
    logs, half = np.log(values), len(values) // 2
    orders = (random.permuted(np.tile(logs, (BATCH, 1)), axis=1) for _ in range(SPLITS // BATCH))
    differences = (
        (some[:, :half, None] - some[:, None, half : 2 * half]).reshape(BATCH, half * half) for some in orders
    )
    return _splits(half, differences, depth=rank_sum_null(half, half).depth(CONFIDENCE))


def _splits(pairs: int, differences: Iterable[NDArray[np.float64]], *, depth: int) -> Splits:
    """Return the intervals of (BATCH, differences) at a time, between their `depth`-th smallest and largest."""
    low, high = [], []
    for some in differences:
        ordered = np.partition(some, (depth - 1, some.shape[1] - depth), axis=1)
        low.append(ordered[:, depth - 1])
        high.append(ordered[:, -depth])
    return Splits(pairs, np.concatenate(low), np.concatenate(high))


def _statement(cell: Cell, paired: Splits) -> str:
    framework, model = framework_label(cell.framework), cell.first.model
    return (
        f"{framework}, {model} is called faster than itself in {100 * paired.false_alarms:.1f} % of random splits. "
        f"A delay of {100 * DELAY:g} % is detected in {100 * paired.power(DELAY):.0f} % of them."
    )


def _table(splits: Sequence[tuple[Cell, Splits, Splits]]) -> Table:
    found, smallest = f"detects {100 * DELAY:g} %, %", f"delay detected in {100 * POWER:.0f} %, %"
    headings = ["framework, model, data set, np", "runs", "median, s", "spread of neighbors, %", "compared",
                "called faster, %", found, smallest]  # fmt: skip
    rows: list[list[Any]] = []
    for cell, paired, unpaired in splits:
        values = seconds(cell)
        logs = np.log(values[: 2 * paired.pairs])
        spread = 100 * float(np.std(logs[1::2] - logs[::2]))
        for how, one in (("paired", paired), ("unpaired", unpaired)):
            rows.append(
                [cell.name, len(values), float(np.median(values)), spread, how, 100 * one.false_alarms,
                 100 * one.power(DELAY), 100 * one.smallest_delay]
            )  # fmt: skip
    formats = {"runs": "d", "median, s": ".2f", found: ".0f"}
    formats |= dict.fromkeys(("spread of neighbors, %", "called faster, %", smallest), ".1f")
    return Table("Runs of one setting against themselves", headings, rows, formats)


def _by_pairs(cells: Sequence[Cell]) -> Table:
    """Return the delay that each number of pairs detects: how many runs an experiment needs."""
    most = max(len(seconds(cell)) // 2 for cell in cells)
    numbers = [n for n in (FEWEST_PAIRS, 10, 20, 40, 80) if n <= most]
    headings = ["framework, model, data set, np", *(f"{n} pairs" for n in numbers)]
    rows: list[list[Any]] = []
    for cell in cells:
        values = seconds(cell)
        of_numbers = [
            100 * paired_splits(values[: 2 * n]).smallest_delay if 2 * n <= len(values) else None for n in numbers
        ]
        rows.append([cell.name, *of_numbers])
    title = f"The smallest delay that is detected in {100 * POWER:.0f} % of splits, %"
    return Table(title, headings, rows, dict.fromkeys(headings[1:], ".1f"))


def _plot(splits: Sequence[tuple[Cell, Splits, Splits]]) -> Plot:
    delays = np.linspace(0, 0.25, 101)
    rows: list[list[Any]] = []
    figure = Figure(figsize=(7.5, 4.2))
    ax = figure.subplots()
    for cell, paired, unpaired in splits:
        style = framework_style(cell.framework)
        for how, one, line in (("paired", paired, "-"), ("unpaired", unpaired, ":")):
            found = [100 * one.power(delay) for delay in delays]
            label = f"{cell.name}, {how}, {one.pairs} runs per side"
            ax.plot(100 * delays, found, color=style["color"], linestyle=line, label=label)
            rows += [[cell.name, how, 100 * delay, value] for delay, value in zip(delays, found, strict=True)]
    ax.axhline(100 * POWER, **IDEAL)
    ax.axvline(100 * DELAY, **IDEAL)
    ax.set_xlabel("injected delay, %")
    ax.set_ylabel("splits that detect it, %")
    ax.legend(fontsize=8)
    figure.suptitle(f"A/A test: runs of one setting, split at random {SPLITS:,} times")
    data = Table("Detected delays", ["framework, model, data set, np", "compared", "delay, %", "detected, %"], rows,
                 {"delay, %": ".2f", "detected, %": ".1f"})  # fmt: skip
    return Plot("aa-test", figure, data)
