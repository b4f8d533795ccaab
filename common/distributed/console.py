"""Output of a run by rank 0: whole lines under a launcher, progress bars in a terminal without one."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from tqdm import tqdm

from common.distributed.communicator import Communicator
from common.distributed.launchers import under_launcher


class Console:
    """Rank 0 prints; the same calls do nothing on the other ranks."""

    def __init__(self, comm: Communicator, *, progress: str = "auto") -> None:
        self._rank = comm.rank
        self._speaks = comm.rank == 0
        self._progress = progress
        # mpirun gives every rank a terminal, even if its own output is a file.
        self.bars = self._speaks and (progress == "bars" or (progress == "auto" and self.automatic_bars()))

    def of(self, comm: Communicator) -> "Console":
        """Return the console of this process as a rank of another communicator."""
        return Console(comm, progress=self._progress)

    @staticmethod
    def automatic_bars() -> bool:
        """Return whether this process prints to a terminal without a launcher."""
        return not under_launcher(os.environ) and sys.stderr.isatty()

    def line(self, text: str) -> None:
        """Print whole lines in one write, for launchers tag every write with the rank; nothing once nobody reads."""
        if self._speaks:
            with suppress(BrokenPipeError):  # `| head` has read enough, and the run goes on
                self._write(sys.stdout, text)

    def error(self, text: str, *, of_this_rank: bool = False) -> None:
        """Print one line on standard error; `of_this_rank`: also if it is not rank 0, which does not know of it."""
        if self._speaks:
            self._write(sys.stderr, text)
        elif of_this_rank:
            self._write(sys.stderr, f"{text} (rank {self._rank})")

    def steps(self, total: int, *, title: str, done: int = 0) -> Callable[[int], object]:
        """Return a function that advances the progress bar, if any, by a number of steps, of which some are `done`."""
        if not self.bars:
            return lambda steps: None
        bar = tqdm(total=total, initial=done, desc=title, unit="step", leave=False)

        def advance(steps: int) -> None:
            bar.update(steps)
            if bar.n >= total:
                bar.close()

        return advance

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        stream.write(text + "\n")
        stream.flush()


def counted(number: int, noun: str) -> str:
    """Return `1 rank`, `2 ranks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def readable_seconds(seconds: float) -> str:
    """Return a duration such as 7.3 s, 4 min 05 s, 2 h 03 min."""
    if seconds < 99.5:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
