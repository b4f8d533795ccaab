"""Work on all cores with only a few items in progress, so that memory does not grow with their number.

Threads suit work that releases the interpreter lock and returns large results: on 2 cores, images of 227 x 227 were
decoded and resized at 2,473 and 2,599 images/s by threads and at 2,223 and 2,372 by processes. Processes suit many
short calls without results: drawing images ran at 341 and 422 images/s, against 253 and 321 by threads (n = 2 each).
"""

import ctypes
import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from common.errors import UserError
from common.utils.cores import usable_cores

_KILLED = (
    "a worker process was killed, perhaps because memory ran out. Received: no result from it. Run fewer other "
    "programs, or give it less to do"
)
Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], *, workers: int | None = None, processes: bool = False
) -> Iterator[Result]:
    """Yield the result of each item, in the order of the items.

    Args:
        work: called by several workers at once.
        items: taken as they are needed.
        processes: the workers are processes, to which `work`, items and results are sent, instead of threads.

    Raises:
        UserError: a worker process was ended.
    """
    count = workers or usable_cores()
    in_progress: deque[Future[Result]] = deque()
    with _process_pool(count) if processes else ThreadPoolExecutor(count) as pool:
        try:
            for item in items:
                in_progress.append(pool.submit(work, item))
                if len(in_progress) > 2 * count:
                    yield in_progress.popleft().result()
            while in_progress:
                yield in_progress.popleft().result()
        except BrokenProcessPool:
            raise UserError(_KILLED) from None
        finally:
            for future in in_progress:
                future.cancel()


def _process_pool(count: int) -> Executor:
    # Ctrl-C reaches all processes of a terminal; only the first one handles it and then ends the others.
    return ProcessPoolExecutor(
        count,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )


_SET_SIGNAL_OF_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG of Linux' prctl
_own: dict[str, Any] = {}  # of a process of `side_by_side`: its work and the items


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the result of each of a few items, made by copies of this process, one for each core.

    What the work reads is not sent to the copies, which have it; the results are sent back. Only Linux copies a process
    safely: elsewhere, and on one core, the items are worked on one after the other.

    Raises:
        UserError: a copy was ended.
    """
    count = min(usable_cores(), len(items))
    if count < 2 or sys.platform != "linux":
        return [work(item) for item in items]
    copies = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(count, mp_context=copies, initializer=_begin, initargs=(work, items)) as pool:
            return list(pool.map(_work_on, range(len(items))))
    except BrokenProcessPool:
        raise UserError(_KILLED) from None


def _begin(work: Callable[[Any], Any], items: Sequence[Any]) -> None:
    _own.update(work=work, items=items)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_SET_SIGNAL_OF_PARENTS_DEATH, signal.SIGKILL)


def _work_on(number: int) -> Any:
    return _own["work"](_own["items"][number])
