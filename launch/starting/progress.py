"""How far a long command is: a bar in a terminal, else a line for each part that is done."""

import sys
import time
from types import TracebackType

from tqdm import tqdm

from common.distributed.console import readable_seconds


class Progress:
    """Shows the time left, from the planned seconds of all parts and the measured time of those done."""

    def __init__(self, planned_seconds: float) -> None:
        self._planned, self._done = planned_seconds, 0.0
        self._began = time.monotonic()
        self._bar = tqdm(
            total=round(planned_seconds),
            bar_format="{percentage:3.0f} % |{bar:20}| {elapsed}{postfix}",
            disable=not sys.stderr.isatty(),
            leave=False,
        )

    def __enter__(self) -> "Progress":
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the bar."""
        self._bar.close()

    def advance(self, planned_seconds: float, title: str, *, line: bool = False) -> None:
        """Count planned seconds as done; `line`: print a line, also without a terminal."""
        self._done += planned_seconds
        spent = time.monotonic() - self._began
        # The first part shows no pace: the plan is trusted until 5 % of it is done.
        known = self._done > 0.05 * self._planned
        left_seconds = (self._planned - self._done) * spent / self._done if known else self._planned - spent
        left = [f"about {readable_seconds(round(left_seconds))} left"] if left_seconds >= 0.5 else []
        if line:
            self._bar.clear()
            print("; ".join([title, *left]), flush=True)
        self._bar.set_postfix_str("; ".join([*left, title]), refresh=False)
        self._bar.update(round(min(self._done, self._planned)) - self._bar.n)
