"""Wait for what other threads and processes do: by looking again and again, never for a fixed time."""

import time


def wait_until(condition, *, within_seconds=120.0, shown=lambda: ""):
    """Wait until a condition holds; fail with what `shown` returns where it never does."""
    deadline = time.monotonic() + within_seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_seconds:.0f} s in vain. {shown()}"
        time.sleep(0.02)
