"""From turns to figures: a ratio for each pair, then the median of the ratios with their range. Pure functions."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from common.checks.bench_turns import Turn


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of ranks, in which two contestants take turns.

    Attributes:
        name: as on the command line.
        title: what the ratio says.
        base, measured: contestants of `common.checks.bench_turns`; the ratio is measured / base.
        launcher: none, mpi, gloo (both by horovodrun) or torchrun.
        variables: of the environment.
        torch_only: whether Keras has no such thing.
    """

    name: str
    title: str
    base: str
    measured: str
    launcher: str
    variables: tuple[tuple[str, str], ...] = ()
    torch_only: bool = False


STARTS = (
    Start(name="bare", title="trainer / bare loop, np 1", base="bare", measured="np1", launcher="none"),
    Start(name="apart", title="np 2 / np 1, no exchange: ceiling", base="np1", measured="np2_apart", launcher="mpi"),
    Start(name="mpi", title="np 2 / np 1, MPI that yields", base="np1", measured="np2", launcher="mpi"),
    Start(name="gloo", title="np 2 / np 1, Gloo", base="np1", measured="np2", launcher="gloo"),
    Start(
        name="mpi_spinning",
        title="np 2 / np 1, MPI that spins",
        base="np1",
        measured="np2",
        launcher="mpi",
        variables=(("OMPI_MCA_mpi_yield_when_idle", "0"),),
    ),
    Start(name="each", title="np 2 / np 1, tensor by tensor, MPI", base="np1", measured="np2_each", launcher="mpi"),
    Start(name="ddp", title="np 2 / np 1, DDP, Gloo", base="np1", measured="np2_ddp", launcher="torchrun",
          torch_only=True),
)  # fmt: skip
CONTROLLERS = ("mpi", "gloo")  # between which `horovodrun` leaves the choice


@dataclass(frozen=True)
class Spread:
    """Median and range of some values."""

    median: float
    least: float
    most: float
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Return the median (statistics.median: the mean of the middle two of an even number), least, most and count."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: images/s of both contestants, and measured / base of each pair."""

    framework: str
    model: str
    start: Start
    base: Spread
    measured: Spread
    ratio: Spread


def pair_ratios(turns: Sequence[Turn], *, base: str, measured: str) -> list[float]:
    """Return images/s of `measured` over those of `base`, a ratio for each round that has both."""
    speeds = {(turn.contestant, turn.round): turn.images_per_second for turn in turns}
    rounds = sorted({turn.round for turn in turns})
    return [
        speeds[measured, number] / speeds[base, number]
        for number in rounds
        if (base, number) in speeds and (measured, number) in speeds
    ]


def make_row(turns: Sequence[Turn], *, framework: str, start: Start) -> Row:
    """Return the line of one start and model; `turns` are all of it and nothing else."""

    def speeds(contestant: str) -> list[float]:
        return [turn.images_per_second for turn in turns if turn.contestant == contestant]

    return Row(
        framework=framework,
        model=turns[0].model,
        start=start,
        base=spread(speeds(start.base)),
        measured=spread(speeds(start.measured)),
        ratio=spread(pair_ratios(turns, base=start.base, measured=start.measured)),
    )


def format_table(rows: Sequence[Row]) -> str:
    """Return the rows as text, sorted by model and framework; in the order of `STARTS` within these."""
    ordered = sorted(rows, key=lambda row: (row.model, row.framework, STARTS.index(row.start)))
    head = ("model", "framework", "ratio", "base, images/s", "measured, images/s", "median ratio (range)", "n")
    body = [
        (
            row.model,
            row.framework,
            row.start.title,
            f"{row.base.median:,.0f}",
            f"{row.measured.median:,.0f}",
            format_ratio(row.ratio),
            str(row.ratio.n),
        )
        for row in ordered
    ]
    widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
             for line in (head, *body)]  # fmt: skip
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def format_ratio(ratio: Spread) -> str:
    """Return a ratio as people read it: 0.95 (0.93-0.97)."""
    return f"{ratio.median:.2f} ({ratio.least:.2f}-{ratio.most:.2f})"


def controller_lines(rows: Sequence[Row]) -> list[str]:
    """Return which controller gave the higher median ratio, for each model and framework measured on several."""
    lines = []
    for model, framework in sorted({(row.model, row.framework) for row in rows}):
        candidates = [
            row for row in rows if (row.model, row.framework) == (model, framework) and row.start.name in CONTROLLERS
        ]
        if len(candidates) < 2:
            continue
        best, *others = sorted(candidates, key=lambda row: row.ratio.median, reverse=True)
        close = any(other.ratio.most >= best.ratio.least for other in others)
        lines.append(
            f"{model}, {framework}: {best.start.name} won, {best.ratio.median:.2f} against "
            f"{', '.join(f'{other.ratio.median:.2f} ({other.start.name})' for other in others)}"
            f"{'; the ranges overlap' if close else ''}"
        )
    return lines
