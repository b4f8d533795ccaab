"""What the kernel says of a process. Standard library only: watchers of ranks use it, too."""

from pathlib import Path

STOPPED = ("T", "t")  # by a signal, by a debugger
GONE = "gone"
ENDED = ("Z", "X", GONE)  # Z: nobody has taken note of its end yet, as in many containers


def process_state(process: int) -> str:
    """Return the state of a process, a letter of /proc/PID/stat such as T for stopped, or GONE."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return GONE


def parent_of(process: int) -> int:
    """Return the process that has started another one; 0: it has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0
