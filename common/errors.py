"""Errors that users can fix: one line on the terminal and exit code 2. Standard library only: set-up uses it."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXIT_CODE_USER_ERROR = 2
EXIT_CODE_STALLED = 3  # another rank ended or hung, and with it the run, which can be resumed
EXIT_CODE_INTERRUPTED = 130  # 128 + SIGINT, the convention of shells


# Packages in the base environment that its own list lacks would be refused by `make lock`.
HOW_TO_GET_EXTRAS = "Run `make extras`, and this command with PYTHONPATH=.venv.extras"


LONGEST_MESSAGE = 2000  # characters
# A hidden name that `common.utils.atomic` uses until a file or folder is complete: users know the one in it.
_TEMPORARY = re.compile(r"(^|/)\.([^/]+)\.partial-[^/]*(?:/new)?")


class UserError(ValueError):
    """An error that the user can fix.

    The message is one line: what was wrong, what was received ("Received: ..."), what to do. Of one that is too long,
    because of what was received, the middle is left out. Any other exception is a bug and keeps its traceback.
    """

    def __init__(self, message: str) -> None:
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[: LONGEST_MESSAGE // 2]} [...] {message[-LONGEST_MESSAGE // 2 :]}"
        super().__init__(message)


_REMEDIES = {
    errno.ENOSPC: "Free some space or name another folder",
    errno.EDQUOT: "Free some of your quota or name another folder",
    errno.EACCES: "Change its permissions or name another folder",
    errno.EPERM: "Change its permissions or name another folder",
    errno.EROFS: "Name a folder that can be written",
    errno.ENOTDIR: "Name a folder",
}


def as_user_error(error: UserError | OSError | MemoryError, *, doing: str = "the command") -> UserError:
    """Return the UserError for an error of an operation: what failed, the path, and the remedy."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, MemoryError):
        return UserError(
            "there is not enough memory. Received: a data set, model or batch of this size. Make it smaller, or use "
            "another machine"
        )
    remedy = _REMEDIES.get(error.errno or 0, "Check the path, its disk and its permissions")
    place = _TEMPORARY.sub(r"\1\2", str(error.filename)) if error.filename else "no path"
    return UserError(f"{doing} failed: {error.strerror or error}. Received: {place}. {remedy}")


@contextmanager
def user_errors(doing: str) -> Iterator[None]:
    """Turn an OSError in what is done, such as a full disk in "writing the run folder", into a UserError."""
    try:
        yield
    except OSError as error:
        raise as_user_error(error, doing=doing) from error


def expanded(path: str | Path) -> Path:
    """Return the path with `~` and `~user` replaced.

    Raises:
        UserError: the user does not exist, or no path can be written so.
    """
    try:
        os.fsencode(path)
    except UnicodeEncodeError:  # half a character, which JSON can write
        raise UserError(f"no file can have this name. Received: {str(path)!r}. Correct it") from None
    if "\0" in str(path):
        raise UserError(f"a path has no zero byte. Received: {str(path)!r}. Correct it")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"the user does not exist. Received: {path}. Name the folder without '~'") from None


LONGEST_VALUE = 100  # characters of a value in a message


def first_problem(error: Any) -> str:
    """Return the first problem of a pydantic ValidationError: field, reason, value received."""
    first = error.errors(include_url=False)[0]
    if isinstance(first.get("ctx", {}).get("error"), UserError):
        return str(first["ctx"]["error"])
    where = ".".join(part for part in map(str, first["loc"]) if not part.startswith("function-"))  # validators
    received = repr(first["input"])
    shown = received if len(received) <= LONGEST_VALUE else f"{received[:LONGEST_VALUE]}..."
    reason = first["msg"].removeprefix("Value error, ")
    return f"{where}: {reason}. Received: {shown}" if where else f"{reason}. Received: {shown}"
