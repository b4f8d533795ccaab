"""Wait for what other threads and processes do: by looking again and again, never for a fixed time."""

import time


def wait_until(condition, *, within_seconds=None, shown=lambda: "", process=None):
    """Wait until a condition holds; fail where it never does, or where a process that has to bring it about ends.

    Args:
        within_seconds: None: 120, or 400 for a process, on a machine that has much else to do.
        shown: what the failure shows.
    """
    deadline = time.monotonic() + (within_seconds or (400 if process else 120))
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"waited in vain. {shown()}"
        time.sleep(0.02)
