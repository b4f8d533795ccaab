"""A trainer of an elastic run in which ranks end and join at given updates: `elastic_worker.py FRAMEWORK EVENTS ...`.

EVENTS is a file with a JSON list: after which update of which epoch a rank of a number gets a signal (`signal`), some
milliseconds later (`after`), or a name of this host is added to the hosts (`add`, by rank 0), which the run waits for.
The other arguments are the trainer's. What the ranks rehearse is printed (`patches.noted_rehearsal`).
"""

import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from patches import noted_rehearsal

from common.run.elastic import Elastic

JOIN_SECONDS = 60.0


def main():
    framework, events = sys.argv[1], Path(sys.argv[2])
    original = Elastic.paused

    def paused(self, epoch):
        original(self, epoch)
        for number, event in enumerate(json.loads(events.read_text())):
            if (epoch.number, epoch.done) == (event["epoch"], event["update"]):
                happen(event, self, done=events.with_name(f"event-{number}"))

    Elastic.paused = paused
    program = importlib.import_module(f"{framework}_impl.train")
    with noted_rehearsal(framework):
        code = program.main(sys.argv[3:])
    program.exit_rank(code)


def happen(event, elastic, *, done):
    if elastic._comm.rank != event.get("rank", 0) or done.exists():
        return
    done.touch()
    if "signal" in event:
        number = signal.Signals[event["signal"]]
        threading.Timer(event["after"] / 1000, os.kill, (os.getpid(), number)).start()
        return
    with Path(event["hosts"]).open("a") as hosts:
        hosts.write(f"{event['add']}:1\n")
    deadline = time.monotonic() + JOIN_SECONDS
    while not elastic.has_news():
        assert time.monotonic() < deadline, "Horovod has not seen the new host"
        time.sleep(0.05)


if __name__ == "__main__":
    main()
