"""Runs programs of the project in processes of their own in which a file operation fails: for `launch chaos`.

`python -m launch.checks.chaos_worker MODULE...` imports the programs once. Each line that it reads is an `Order` in
JSON; each that it prints is its `Outcome`. `launch/checks/file_faults.c` has to be loaded before the C library.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field

POLL_SECONDS = 0.01
LAST_SECONDS = 10.0  # for what a program has started to follow its end


@dataclass(frozen=True, kw_only=True)
class Order:
    """A program to run.

    Attributes:
        module: its `main` takes the arguments and returns an exit code.
        folder: whose file operations are counted.
        operation: number, from 1, of the one that fails; 0: none.
        action: number of the error, or what else `file_faults.c` does.
        output: file for what is printed.
        seconds: after which it counts as hung.
    """

    module: str
    arguments: list[str]
    folder: str
    output: str
    seconds: float
    operation: int = 0
    action: int = 0
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a program ended.

    Attributes:
        code: exit code; of a signal, its negative number.
        operations: that were counted; 0 if it was killed.
        left: whether processes that it had started outlived it.
    """

    code: int
    operations: int
    hung: bool
    left: bool
    seconds: float


def carry_out(order: Order) -> Outcome:
    """Run a program in a process of its own, and wait for it and for those that it starts."""
    began = time.monotonic()
    results, answer = os.pipe()
    child = os.fork()
    if not child:
        os.close(results)
        _run(order, answer)
    os.close(answer)
    ended, status = 0, 0
    while not ended and time.monotonic() - began < order.seconds:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(POLL_SECONDS)
    last = time.monotonic() + LAST_SECONDS
    while ended and (left := _has_group(child)) and time.monotonic() < last:
        time.sleep(POLL_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(child, 0)
    with os.fdopen(results) as file:
        counted = file.read()
    return Outcome(
        code=os.waitstatus_to_exitcode(status),
        operations=int(counted or 0),
        hung=not ended,
        left=bool(ended) and left,
        seconds=time.monotonic() - began,
    )


def _run(order: Order, answer: int) -> None:
    """Become the program."""
    os.setsid()
    output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(order.variables)
    faults = ctypes.CDLL(None)  # loaded before the C library, it is among what the process itself has
    faults.file_faults_arm(order.folder.encode(), ctypes.c_long(order.operation), order.action)
    code = 1
    try:
        code = importlib.import_module(order.module).main(order.arguments) or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # a fault of ours, which the trial finds in the output
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os.write(answer, str(faults.file_faults_counted()).encode())
        os._exit(code)


def _has_group(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """Carry out orders until there are no more."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(asdict(carry_out(Order(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
