"""Apply the patches of this folder to the source of Horovod, without git or patch. Standard library only.

    python apply.py FOLDER      FOLDER: the unpacked source distribution of Horovod 0.28.1

Strict: every file must have the hash that its patch names, before and after. Nothing is written if one has another, so
that a second application is refused.
"""

import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PATCHES = Path(__file__).resolve().parent / "patches"
NO_FILE = "0" * 40  # what git names in place of a hash where a patch adds a file
HEADER = re.compile(
    r"diff --git a/(?P<path>\S+) b/\S+\n(?:.*\n)*?index (?P<before>[0-9a-f]{40})\.\.(?P<after>[0-9a-f]{40})"
)
HUNK = re.compile(r"@@ -(?P<start>\d+)(?:,(?P<old>\d+))? \+\d+(?:,(?P<new>\d+))? @@")


class PatchError(Exception):
    """A patch does not fit."""


@dataclass
class Change:
    """What a patch does to one file.

    Attributes:
        path: of the file, in the source folder.
        before, after: git's hash of the file; `NO_FILE`: there is none.
        hunks: for each, the number of its first line, the lines that must be there and those that take their place.
    """

    path: str
    before: str
    after: str
    hunks: list[tuple[int, list[str], list[str]]] = field(default_factory=list)

    def applied_to(self, text: str) -> str:
        """Return the changed text of the file."""
        lines, result, done = lines_of(text), [], 0
        for start, old, new in self.hunks:
            first = start - 1 if old else start  # a hunk without old lines comes after the line that it names
            result += lines[done:first] + new
            done = first + len(old)
            if lines[first:done] != old:
                raise PatchError(f"{self.path} has other lines than the patch expects. Received: line {start}")
        return "".join(result + lines[done:])


def changes_of(patch: str) -> list[Change]:
    """Return what a patch changes. It is one of `git diff --full-index`, with any text before."""
    changes = []
    for part in re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]:
        header = HEADER.match(part)
        if header is None:
            raise PatchError(f"a patch lacks full hashes. Received: {part.splitlines()[0]}. Make it with --full-index")
        change = Change(header["path"], header["before"], header["after"])
        lines = iter(lines_of(part))
        for line in lines:
            if hunk := HUNK.match(line):
                change.hunks.append((int(hunk["start"]), *sides(lines, int(hunk["old"] or 1), int(hunk["new"] or 1))))
        changes.append(change)
    return changes


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends. Only a newline ends one; sources hold form feeds."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def sides(lines: Iterator[str], old_count: int, new_count: int) -> tuple[list[str], list[str]]:
    """Read one hunk; return its lines before and after."""
    old: list[str] = []
    new: list[str] = []
    while len(old) < old_count or len(new) < new_count:
        line = next(lines)
        if line[0] in " -":
            old.append(line[1:])
        if line[0] in " +":
            new.append(line[1:])
    return old, new


def git_hash(text: str | None) -> str:
    """Return the hash by which git names a file; `NO_FILE` for none."""
    if text is None:
        return NO_FILE
    content = text.encode()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def apply(source: Path, patches: Path = PATCHES) -> list[str]:
    """Apply all patches to a source folder, or none; return the paths of the changed files.

    Raises:
        PatchError: a file is not what a patch expects.
    """
    files: dict[str, str | None] = {}
    for patch in sorted(patches.glob("*.patch")):
        for change in changes_of(patch.read_text(encoding="utf-8")):
            path = source / change.path
            if change.path not in files:
                files[change.path] = read(path) if path.exists() else None
            check(files[change.path], change.before, f"{path} is not the file that {patch.name} is for")
            changed = change.applied_to(files[change.path] or "")
            check(changed, change.after, f"{patch.name} makes another file of {path} than it should")
            files[change.path] = changed
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((text or "").encode())
    return list(files)


def read(path: Path) -> str:
    """Return a file's text as it is, whatever ends its lines."""
    return path.read_bytes().decode()


def check(text: str | None, expected: str, problem: str) -> None:
    """Raise PatchError unless a file has the expected hash."""
    received = git_hash(text)
    if received != expected:
        shown = "no file" if received == NO_FILE else received
        raise PatchError(
            f"{problem}. Expected: {expected}. Received: {shown}. Unpack horovod-0.28.1.tar.gz anew: patches are "
            "applied once, to the source as it was published"
        )


def main(arguments: list[str]) -> int:
    """Apply the patches; return the exit code."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print(f"apply.py: error: name the source folder. Received: {' '.join(arguments) or 'nothing'}", file=sys.stderr)
        return 2
    try:
        changed = apply(Path(arguments[0]))
    except PatchError as error:
        print(f"apply.py: error: {error}", file=sys.stderr)
        return 2
    print(f"patched {len(changed)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
