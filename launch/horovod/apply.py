"""Apply the patches of this folder to the source of Horovod, without git or patch. Standard library only.

    python apply.py FOLDER      FOLDER: the unpacked source distribution of Horovod 0.28.1

Strict: every file must have the hash that its patch names, before and after. Nothing is written if one has another, so
that a second application is refused.
"""

import hashlib
import re
import sys
from pathlib import Path

PATCHES = Path(__file__).resolve().parent / "patches"
NO_FILE = "0" * 40  # what git names in place of a hash where a patch adds a file
HEADER = re.compile(
    r"diff --git a/(?P<path>\S+) b/\S+\n(?:.*\n)*?index (?P<before>[0-9a-f]{40})\.\.(?P<after>[0-9a-f]{40})"
)


class PatchError(Exception):
    """A patch does not fit."""


def apply(source: Path, patches: Path = PATCHES) -> list[str]:
    """Apply all patches to a source folder, or none; return the paths of the changed files.

    Raises:
        PatchError: a file is not what a patch expects.
    """
    files: dict[str, str | None] = {}
    for patch in sorted(patches.glob("*.patch")):
        for part in re.split(r"^(?=diff --git )", patch.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            header = HEADER.match(part)
            if header is None:
                start = part.splitlines()[0]
                raise PatchError(f"a patch lacks full hashes. Received: {start}. Make it with --full-index")
            name, path = header["path"], source / header["path"]
            if name not in files:
                files[name] = path.read_bytes().decode() if path.exists() else None  # whatever ends its lines
            check(files[name], header["before"], f"{path} is not the file that {patch.name} is for")
            files[name] = changed(files[name] or "", part)
            check(files[name], header["after"], f"{patch.name} makes another file of {path} than it should")
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((text or "").encode())
    return list(files)


def changed(text: str, part: str) -> str:
    """Return a file's text after the hunks of its part of a patch. Whether they fit, the hashes say."""
    lines, result, done = lines_of(text), [], 0
    for hunk in re.split(r"^(?=@@ )", part, flags=re.MULTILINE)[1:]:
        head, *body = lines_of(hunk)
        start, count = re.findall(r"-(\d+)(?:,(\d+))?", head)[0]
        first = int(start) if count == "0" else int(start) - 1  # without old lines it comes after the line named
        result += lines[done:first] + [line[1:] for line in body if line[0] in " +"]
        done = first + sum(line[0] in " -" for line in body)
    return "".join(result + lines[done:])


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends. Only a newline ends one; sources hold form feeds."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def check(text: str | None, expected: str, problem: str) -> None:
    """Raise PatchError unless a file has the hash that git would give it."""
    content = (text or "").encode()
    received = NO_FILE if text is None else hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
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
