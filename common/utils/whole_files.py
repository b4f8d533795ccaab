"""Files that are read whole, TOML and JSON: whatever they hold, readers meet only the errors named here.

Standard library only: set-up reads its files so.
"""

import errno
import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

from common.errors import UserError

MOST_BYTES = 256 * 2**20  # of a file that is read whole; the largest original file of a data set has 170 MB
MOST_TOML, LONGEST_LINE = 10**6, 10**4  # characters of a TOML document, and of its longest line


def require_file(path: Path) -> os.stat_result:
    """Return the status of a file or folder.

    Raises:
        OSError: it does not exist, or it is a named pipe or device: opening that may wait for ever.
    """
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError(errno.EINVAL, "a named pipe or device, not a file", str(path))
    return status


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it cannot be read, no file can have its name, or it is larger than MOST_BYTES.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            is_large = size > MOST_BYTES
            # Not as much as is allowed: asking for memory for that takes as long as reading a small file.
            content = b"" if is_large else file.read(size)
            if not is_large and file.peek(1):  # it grew, or is a device, which has no size
                content += file.read(MOST_BYTES + 1 - len(content))
    except ValueError:  # a zero byte, or what is no character
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path)) from None
    if is_large or len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def read_text(path: Path) -> str:
    """Return the content of a file in UTF-8, with lines that end in "\\n" alone.

    Raises:
        OSError: as of `read_bytes`.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_bytes(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document.

    Raises:
        tomllib.TOMLDecodeError: it is not TOML, or it has more levels or digits than messages can show.
    """
    try:
        longest = max(map(len, text.splitlines()), default=0)
        if len(text) > MOST_TOML or longest > LONGEST_LINE:  # a key of many parts takes the square of their number
            raise ValueError(f"it has {len(text):,} characters, {longest:,} of them in one line")
        content = tomllib.loads(text.replace("\r\n", "\n"))
        json.dumps(content, default=str)  # tables within tables, and a hexadecimal number, may be of any size
    except (ValueError, RecursionError) as error:
        raise tomllib.TOMLDecodeError(str(error)) from None
    return content


def read_toml(path: Path, *, what: str, remedy: str = "Name a TOML file") -> dict[str, Any]:
    """Return the content of a TOML file; what it is, and the remedy if there is none, are for the messages.

    Raises:
        UserError: it cannot be read, or is not TOML.
    """
    try:
        return parse_toml(read_text(path))
    except OSError as error:
        raise UserError(f"cannot read the {what}: {error.strerror}. Received: {path}. {remedy}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the {what} is not TOML. Received: {path} ({error}). Fix the file") from None


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON document.

    Raises:
        ValueError: it is not JSON, or it has more levels or digits than Python reads.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from None
