"""Run folders that are set aside: kept, but neither analyzed nor fetched."""

from pathlib import Path

from common.errors import user_errors

SET_ASIDE = "set-aside"


def set_aside(folder: Path, *, log: Path | None = None) -> Path:
    """Move a run folder to the first free of `set-aside/NAME-1`, `-2`, ... in the same folder; return its new path.

    Args:
        folder: of the run; it may be missing if there is a log.
        log: output of the run, which is moved into the new folder as `output.log` if it exists.

    Raises:
        UserError: it cannot be moved.
    """
    number = 1
    while (place := folder.parent / SET_ASIDE / f"{folder.name}-{number}").exists():
        number += 1
    with user_errors("setting the old run folder aside"):
        place.parent.mkdir(exist_ok=True)
        if folder.exists():
            folder.rename(place)
        if log is not None and log.exists():
            place.mkdir(exist_ok=True)
            log.rename(place / "output.log")
    return place
