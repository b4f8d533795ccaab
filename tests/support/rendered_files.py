"""Rendered files against kept ones in `snapshots/`, so that a change of what is submitted is seen in review.

TWINS_WRITE_RENDERED=1 writes them anew; look at the difference before it is committed.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "snapshots"


def assert_as_kept(name, files):
    """Compare what was rendered with the files of one folder, byte for byte."""
    folder = FOLDER / name
    if os.environ.get("TWINS_WRITE_RENDERED") == "1":
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_bytes(text.encode())
    kept = {path.name: path.read_bytes().decode() for path in folder.iterdir()} if folder.is_dir() else {}
    assert set(files) == set(kept), name
    for file, text in files.items():
        assert text == kept[file], f"{folder / file} is another; TWINS_WRITE_RENDERED=1 writes it anew"
