"""Wait for what other threads and processes do: by looking again and again, never for a fixed time."""

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], *, within_seconds: float = 120.0, shown: Callable[[], str] = lambda: ""
) -> None:
    """Wait until a condition holds; fail with what `shown` returns where it never does."""
    deadline = time.monotonic() + within_seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_seconds:.0f} s in vain. {shown()}"
        time.sleep(0.02)
