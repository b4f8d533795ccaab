"""A rank without any framework: `watched_worker.py FOLDER RANK SIZE ACTION [RANK-IN-TROUBLE [stuck|fails|waits]]`."""

import json
import os
import pickle
import sys
import time
from pathlib import Path

from common.config import FaultConfig
from common.distributed.communicator import Communicator
from common.utils.process_state import ENDED, process_state
from common.watchdog import watch as watch_module
from common.watchdog.board import announce, announce_failure, doing, note_updates
from common.watchdog.watch import start_watch

EXIT_CODE = 3


def main():
    folder, rank, size, action = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    calls = 0

    def allgather(value):
        nonlocal calls
        calls += 1
        own = folder / f"round-{calls}-{rank}"
        own.with_suffix(".part").write_bytes(pickle.dumps(value))
        own.with_suffix(".part").rename(own)
        files = [folder / f"round-{calls}-{other}" for other in range(size)]
        while not all(file.exists() for file in files):
            time.sleep(0.01)
        return [pickle.loads(file.read_bytes()) for file in files]

    def end(reason):
        (folder / f"ended-{rank}").write_text(json.dumps({"reason": reason}))
        os._exit(EXIT_CODE)

    comm = Communicator(rank=rank, size=size, local_rank=rank, local_size=size, controller="gloo", allgather=allgather)
    is_elastic = action == "drop"
    config = FaultConfig(stall_seconds=3.0 if is_elastic else 1.0, on_stall=action, elastic=is_elastic)
    watch_module.TICK_SECONDS = 0.2
    start_watch(config, comm=comm, end=end, fail=lambda reason: end(f"failed: {reason}"))
    announce("training")
    (folder / f"started-{rank}").write_text(str(os.getpid()))
    if sys.argv[5] == str(rank):
        if sys.argv[6] == "stuck":
            stuck_in_data()
        elif sys.argv[6] == "waits":
            wait_for(folder / "started-0")
        else:
            announce_failure("too large")
    while True:
        time.sleep(0.1)
        note_updates(1)


def wait_for(file):
    """Do not move until a process has ended, and take some time to see that."""
    while not file.exists() or process_state(int(file.read_text() or 0)) not in ENDED:
        time.sleep(0.1)
    time.sleep(1.5)


def stuck_in_data():
    with doing("loading data"):
        while True:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
