"""The cache folder of this user. Standard library only: set-up reads it before anything is installed."""

import os
from pathlib import Path

from common.errors import UserError, expanded


def cache_folder() -> Path:
    """Return the cache folder of this user (not created).

    `HOROVOD_TWINS_CACHE` names it; else `$XDG_CACHE_HOME/horovod-twins`; else `~/.cache/horovod-twins`.
    Data sets are in `datasets/`, built Horovod wheels in `wheels/`.

    Raises:
        UserError: there is no such folder.
    """
    named = os.environ.get("HOROVOD_TWINS_CACHE")
    if named:
        return expanded(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return expanded(base).absolute() / "horovod-twins"
    try:
        return Path.home() / ".cache" / "horovod-twins"
    except RuntimeError:
        raise UserError(
            f"this user has no home folder for the cache. Received: user id {os.getuid()} without a name, and no HOME. "
            "Set HOROVOD_TWINS_CACHE to a folder"
        ) from None
