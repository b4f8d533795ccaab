"""What both processes share: their settings, and how they report an error or their end."""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from common.errors import EXIT_CODE_USER_ERROR, UserError, as_user_error
from common.twins.contract import Pair, PairSource, forbid_downloads, load_pair
from common.twins.trace import ArrayFolder

UPDATES = 10
POLL_SECONDS = 0.05
MOST_MULTIPLY_ADDS = 10e9  # of all updates, forward and backward; above, there is one update
TRACE_FILE, COMPARISON_FILE, ERROR_FILE = "torch.json", "keras.json", "{}.error"


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What a process is given.

    Attributes:
        folder: shared by both processes.
        threads: compute threads.
    """

    source: PairSource
    folder: Path
    threads: int

    def pair(self) -> Pair:
        """Return the models; UserError if they cannot be used."""
        return load_pair(self.source)

    def arrays(self) -> ArrayFolder:
        """Return PyTorch's arrays."""
        return ArrayFolder(self.folder / "arrays")

    def wait_for_trace(self) -> Path:
        """Return the file of PyTorch's process once it is there; end if the command has ended."""
        parent, file = os.getppid(), self.folder / TRACE_FILE
        while not file.exists():
            if os.getppid() != parent:
                sys.exit(1)
            time.sleep(POLL_SECONDS)
        return file

    def seconds(self) -> float:
        """Return how long this process has run, imports included."""
        return time.time() - psutil.Process().create_time()


def updates_for(multiply_adds: int) -> int:
    """Return how many updates are made: fewer of a model whose passes take long.

    Args:
        multiply_adds: of a forward pass of a batch; a backward pass has twice as many.
    """
    return UPDATES if 3 * UPDATES * multiply_adds <= MOST_MULTIPLY_ADDS else 1


def run_worker(work: Callable[[Worker], None], *, side: str, arguments: Sequence[str] | None = None) -> int:
    """Do a process's work; a UserError goes into a file, which the command shows."""
    parser = argparse.ArgumentParser(description="Started by `python -m common twins`.")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    settings = json.loads((options.folder / "settings.json").read_text())
    worker = Worker(
        source=PairSource(**settings["source"]),
        folder=options.folder,
        threads=settings["threads"],
    )
    forbid_downloads()
    try:
        work(worker)
    except (UserError, MemoryError) as error:
        traceback.print_exc()
        (options.folder / ERROR_FILE.format(side)).write_text(str(as_user_error(error)))
        return EXIT_CODE_USER_ERROR
    sys.stdout.flush()
    return 0
