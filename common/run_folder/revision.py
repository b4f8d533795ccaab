"""The source revision of a run: git's commit, or that of the bundle from which this folder was set up."""

import functools
import hashlib
import json
import subprocess
from pathlib import Path

from common.utils.paths import ROOT

STAGED_FILE = "staged.json"  # written by launch/offline/unstage.py
CHANGED = "+changes"
UNKNOWN = "unknown"


@functools.cache
def imported_revision() -> str:
    """Return the revision of the sources that this process has imported, with which it goes on."""
    return source_revision()


def source_revision(root: Path = ROOT) -> str:
    """Return the commit, followed by `+changes` if files differ from it; `unknown` if there is no record of it."""
    staged = root / STAGED_FILE
    if staged.exists() and not (root / ".git").exists():  # git might find the commit of a folder around this one
        return _staged_revision(staged)
    return _git_revision(root)


def _git_revision(root: Path) -> str:
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=5)
        changes = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=root,
                                 capture_output=True, text=True, timeout=5)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    if commit.returncode != 0:
        return UNKNOWN
    return commit.stdout.strip() + (CHANGED if changes.stdout.strip() else "")


def _staged_revision(staged: Path) -> str:
    try:
        manifest = json.loads(staged.read_bytes())["manifest"]
        revision = str(manifest["revision"])
        code = {file["path"].partition("/")[2]: file["sha256"] for file in manifest["files"] if _is_code(file["path"])}
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN
    if revision == UNKNOWN or revision.endswith(CHANGED):
        return revision
    same = all(_sha256(staged.parent / path) == checksum for path, checksum in code.items())
    return revision if same else revision + CHANGED


def _is_code(path: str) -> bool:
    return path.startswith("code/")


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
