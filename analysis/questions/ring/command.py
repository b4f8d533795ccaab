"""`python -m analysis ring`: the ring all-reduce, by which Horovod sums gradients, pass by pass with real numbers.

python -m analysis ring --np 4                    every pass as a table
python -m analysis ring --np 6 --plots plots      and as a picture
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.output.finding import Finding, Plot, add_show_options, show
from analysis.output.options import add_parser
from analysis.output.tables import Cell, Table, in_figures
from analysis.questions.ring.passes import Pass, chunk_slices, ring_all_reduce, selected_passes, sums_of_chunks
from analysis.questions.ring.plot import plot_ring
from common.distributed.console import counted
from common.errors import UserError

BYTES_OF_A_NUMBER = 4  # float32, as gradients are sent
MOST_RANKS = 64  # a table has a cell for every pass, rank and chunk: half a million of them here
MOST_NUMBERS = 2 * 10**7  # of all ranks and passes together: 160 MB
RANKS_SHOWN_WHOLE = 8  # of more ranks, only selected passes are printed
_ALONE = "One rank has nothing to send: its vector is the sum already. Give --np 2 or more to see a ring."


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(
        commands,
        "ring",
        run,
        "the ring all-reduce, pass by pass",
        more="The first N - 1 passes add, the next N - 1 replace.",
    )
    parser.add_argument("--np", type=int, required=True, help="ranks in the ring")
    parser.add_argument("--elements", type=int, help="numbers in the vector of each rank (default: one per chunk)")
    add_show_options(parser, plots="folder for the picture (default: none is drawn)")


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: a number of ranks or elements out of range, a folder that cannot be written.
    """
    elements = options.np if options.elements is None else options.elements
    _check(options.np, elements)
    passes = list(ring_all_reduce(example_vectors(options.np, elements)))
    whole = options.format in ("csv", "json") or options.np <= RANKS_SHOWN_WHOLE
    show(find(passes, chosen=None if whole else selected_passes(options.np), drawn=bool(options.plots)), options)


def find(passes: Sequence[Pass], *, chosen: Sequence[int] | None, drawn: bool) -> Finding:
    """Return the passes as a table and, if `drawn`, a picture; `chosen`: see `ring_table`."""
    has_ring = len(passes[0].vectors) > 1
    return Finding(
        name="ring",
        question="How are gradients summed?",
        answer=describe_traffic(passes) if has_ring else _ALONE,
        tables=[ring_table(passes, chosen=chosen)],
        plots=[Plot("ring", plot_ring(passes), ring_table(passes))] if drawn and has_ring else [],
    )


def _check(ranks: int, elements: int) -> None:
    if ranks < 1:
        raise UserError(f"a ring needs ranks. Received: --np {ranks}. Give 2 or more")
    if ranks > MOST_RANKS:
        raise UserError(f"more ranks than can be shown. Received: --np {ranks}. Give {MOST_RANKS} or less")
    if elements < ranks:
        raise UserError(
            f"the vector is cut into a chunk for each rank, of one number at least. Received: --elements {elements} "
            f"--np {ranks}. Give {ranks} elements or more"
        )
    most = MOST_NUMBERS // (ranks * (2 * ranks - 1))
    if elements > most:
        raise UserError(
            f"more numbers than can be shown. Received: --elements {elements} --np {ranks}. "
            f"Give {most} elements or less"
        )


def example_vectors(ranks: int, elements: int) -> np.ndarray:
    """Return (ranks, elements) int64: the first rank has 1, 2, 3, ..., the second twice as much, and so on.

    Sums can be checked in the head: of 4 ranks they are 10, 20, 30, ...
    """
    return np.outer(np.arange(1, ranks + 1), np.arange(1, elements + 1))


def ring_table(passes: Sequence[Pass], *, chosen: Sequence[int] | None = None) -> Table:
    """Return a row for every pass and rank: what the rank sent in it, and the sum of each of its chunks after it.

    Args:
        passes: all of them, the start among them.
        chosen: numbers of the passes shown; None: all.
    """
    ranks, elements = passes[0].vectors.shape
    rows: list[list[Cell]] = []
    for one in passes if chosen is None else [passes[number] for number in chosen]:
        complete = one.contributors.all(axis=2).sum(axis=1).tolist()
        sent = {send.rank: f"chunk {send.chunk} to rank {send.to}" for send in one.sends}
        rows += [
            [one.number, one.kind, rank, sent.get(rank), complete[rank], *sums]
            for rank, sums in enumerate(sums_of_chunks(one).tolist())
        ]
    headings = ["pass", "receivers", "rank", "sent", "complete", *(f"chunk {number}" for number in range(ranks))]
    formats = {"pass": "d", "rank": "d", "complete": "d"} | dict.fromkeys(headings[5:], ",.10g")
    lengths = sorted({part.stop - part.start for part in chunk_slices(elements, ranks)})
    title = (
        f"Ring all-reduce: {counted(ranks, 'rank')}, {counted(elements, 'number')} each, in chunks of "
        f"{' or '.join(str(length) for length in lengths)}; sums of the chunks after each pass"
    )
    if chosen is not None:
        title += f". Passes {', '.join(map(str, chosen))} of 0 to {len(passes) - 1}: --format csv has all"
    return Table(title, headings, rows, formats)


def bytes_sent(passes: Sequence[Pass]) -> list[int]:
    """Return the bytes that each rank sends in all passes together, counted from what it sent."""
    counts = [0] * len(passes[0].vectors)
    for one in passes:
        for send in one.sends:
            counts[send.rank] += send.elements * BYTES_OF_A_NUMBER
    return counts


def describe_traffic(passes: Sequence[Pass]) -> str:
    """Return in words what the busiest rank sends, of its vector and compared with all ranks sending to one.

    In the ring it sends 2 (N - 1) / N of its vector. With one server among the ranks, all others send it their vectors,
    and it sends the sum back to each: it receives and sends N - 1 vectors. All ranks together send 2 (N - 1) vectors
    either way.
    Source: Patarasuk and Yuan 2009, doi 10.1016/j.jpdc.2008.09.002.
    """
    ranks, elements = passes[0].vectors.shape
    most, vector = max(bytes_sent(passes)), elements * BYTES_OF_A_NUMBER
    server = (ranks - 1) * vector
    return (
        f"Each rank sends {most:,} bytes at most, {in_figures(most / vector, 4)} times its vector, in "
        f"{len(passes) - 1} passes. If all ranks sent to one rank instead, and it sent the sum back to all, it would "
        f"send {server:,} bytes and receive as many: {in_figures(server / most, 3)} times what it does in the ring."
    )
