"""Whether a file may be written: asked before the work that fills it."""

from pathlib import Path

from common.errors import UserError


def check_new_file(path: Path, *, option: str = "--output", replaced: bool = False) -> None:
    """Check that a file can be written and that none is lost, without writing it.

    Args:
        path: of the file.
        option: that named it, for the message.
        replaced: an existing file may be replaced (--force).

    Raises:
        UserError: it exists, it is a folder, or no folder can be made for it.
    """
    if path.is_dir():
        raise UserError(f"this is a folder, not a file. Received: {option} {path}. Name a file in it")
    if path.exists() and not replaced:
        raise UserError(
            f"the file already exists and is not overwritten. Received: {option} {path}. Name another, or give --force"
        )
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise UserError(f"a file needs a folder. Received: {option} {path}, and {above} is a file. Name another place")
