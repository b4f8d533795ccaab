"""The one error that is meant for people: it becomes one line on the terminal and exit code 2."""

import errno
from typing import Any

EXIT_CODE_USER_ERROR = 2


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


def one_line(error: Any) -> str:
    """Return the first finding of a pydantic ValidationError: where, what was wrong, what was received."""
    first = error.errors(include_url=False)[0]
    if isinstance(first.get("ctx", {}).get("error"), UserError):
        return str(first["ctx"]["error"])
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}. Received: {first['input']!r}"
