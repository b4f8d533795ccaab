"""The one error that is meant for people: it becomes one line on the terminal and exit code 2."""

import errno
from pathlib import Path
from typing import Any

EXIT_CODE_USER_ERROR = 2
EXIT_CODE_INTERRUPTED = 130  # 128 + SIGINT, as shells say it


class UserError(ValueError):
    """Something the user can mend.

    The message is one line: what was wrong, what was received ("Received: ..."), what to do.
    Anything else that is raised is a bug and keeps its traceback.
    """


_REMEDIES = {
    errno.ENOSPC: "Free some space or name another folder",
    errno.EDQUOT: "Free some of your quota or name another folder",
    errno.EACCES: "Change its permissions or name another folder",
    errno.EPERM: "Change its permissions or name another folder",
    errno.EROFS: "Name a folder that can be written",
    errno.ENOTDIR: "Name a folder",
}


def from_os_error(error: OSError, *, doing: str) -> UserError:
    """Return the error for people that says what could not be done, on which path, and how to mend it."""
    remedy = _REMEDIES.get(error.errno or 0, "Look at the path, its disk and its permissions")
    return UserError(f"{doing} failed: {error.strerror or error}. Received: {error.filename or 'no path'}. {remedy}")


def out_of_memory() -> UserError:
    """Return the error for people where an array does not fit."""
    return UserError(
        "there is not enough memory. Received: a data set, model or batch of this size. Make it smaller, or use "
        "another machine"
    )


def as_user_error(error: UserError | OSError | MemoryError) -> UserError:
    """Return the error as one for people, whatever a command ended with."""
    if isinstance(error, UserError):
        return error
    return out_of_memory() if isinstance(error, MemoryError) else from_os_error(error, doing="the command")


def expanded(path: str | Path) -> Path:
    """Return the path with `~` and `~user` replaced.

    Raises:
        UserError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"there is no such user. Received: {path}. Name the folder without '~'") from None


def one_line(error: Any) -> str:
    """Return the first finding of a pydantic ValidationError: where, what was wrong, what was received."""
    first = error.errors(include_url=False)[0]
    if isinstance(first.get("ctx", {}).get("error"), UserError):
        return str(first["ctx"]["error"])
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}. Received: {first['input']!r}"
