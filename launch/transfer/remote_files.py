"""Files of another machine: listed, checksummed, streamed by the plain tools there: find, sha256sum and tar, GNU's.

A place is a command that runs a shell there, such as `ssh host`. It gets its script by standard input, so that no shell
on the way reads it, and names of files within as base64: they may hold any character.
"""

import base64
import hashlib
import os
import re
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from common.errors import UserError

BLOCK_BYTES = 1 << 20
_NO_SUCH_FOLDER = 3
_SAME_MOMENT_SECONDS = 1e-4
_ESCAPED = {b"\\n": b"\n", b"\\r": b"\r", b"\\\\": b"\\"}


@dataclass(frozen=True)
class Entry:
    """What is no folder.

    Attributes:
        kind: "f" for a plain file.
        size: in bytes.
        inode: its number in its file system.
        changed: when it was written, seconds since 1970.
    """

    kind: str
    size: int
    inode: int
    changed: float

    def is_file(self, path: Path) -> bool:
        """Return whether it is a file here, seen from there: the same number, written at the same moment."""
        try:
            here = path.lstat()
        except OSError:
            return False
        return here.st_ino == self.inode and abs(here.st_mtime - self.changed) < _SAME_MOMENT_SECONDS


@dataclass(frozen=True)
class RemoteFolder:
    """A folder on some machine.

    Attributes:
        shell: command before a line for the shell there; empty: this machine.
        folder: where names of files begin there; empty: where that shell begins.
    """

    shell: Sequence[str]
    folder: str

    def entries(self, roots: Sequence[str]) -> dict[str, Entry]:
        """Return name -> what is in some folders, theirs included; hidden files, which are half written, left out.

        Folders that are not there have nothing in them.

        Raises:
            UserError: the place cannot be reached, or something there must not be read.
        """
        words = " ".join(map(shlex.quote, roots))
        find = f"find -H {words} -mindepth 1 -name '.?*' -prune -o ! -type d -printf '%y %s %i %T@ %p\\0'"
        with self._running(find) as (output, errors):
            found = output.read()
            lines = errors()
        for line in lines:
            if line.startswith("find: ") and not line.endswith("No such file or directory"):
                raise UserError(f"not all of the runs can be read. Received: {line}. Change its permissions there")
        entries = {}
        for record in found.split(b"\0")[:-1]:
            with _readable(record):
                kind, size, inode, changed, name = record.split(b" ", 4)
                entries[os.fsdecode(name)] = Entry(kind.decode(), int(size), int(inode), float(changed))
        return entries

    def checksums(self, names: Sequence[str]) -> dict[str, str]:
        """Return name -> SHA-256 of files; those that have gone meanwhile are left out.

        Raises:
            UserError: the place cannot be reached, or has no sha256sum.
        """
        sums = {}
        with self._running(_fed(names, "xargs -0 -r sha256sum --")) as (output, errors):
            for line in output:
                # A name with a backslash or a line's end in it is escaped, and its line begins with a backslash.
                escaped = line.startswith(b"\\")
                with _readable(line):
                    digest, name = line.lstrip(b"\\").rstrip(b"\n").split(maxsplit=1)
                    name = name[1:] if name.startswith(b"*") else name
                    if escaped:
                        name = re.sub(rb"\\[nr\\]", lambda found: _ESCAPED[found[0]], name)
                    sums[os.fsdecode(name)] = digest.decode("ascii")
            lines = errors()
        if names and not sums:
            raise UserError(
                f"no checksum could be had. Received: {_last(lines)}. GNU find, tar and sha256sum are needed"
            )
        return sums

    def receive(
        self,
        names: Sequence[str],
        *,
        into: Callable[[str], Path],
        came: Callable[[str, str], object],
        advance: Callable[[int], object],
    ) -> None:
        """Copy files to this machine.

        Args:
            names: of plain files. One that has gone, or is no plain file any more, is left out.
            into: name -> path of the new file.
            came: called with each complete file: its name, and the SHA-256 of what was written.
            advance: called with the number of bytes as they come.

        Raises:
            UserError: the connection broke, or something came that was not asked for.
        """
        awaited = set(names)
        tar = "tar -cf - -P --hard-dereference --no-recursion --null -T -"
        with self._running(_fed(names, tar)) as (output, _):
            try:
                with tarfile.open(fileobj=output, mode="r|", errorlevel=2) as archive:
                    for member in archive:
                        if member.name not in awaited:
                            raise UserError(
                                "what came was not asked for. Received: a file named "
                                f"{shown(member.name)}. Do not trust this machine"
                            )
                        awaited.remove(member.name)
                        if member.isreg():
                            content = archive.extractfile(member)
                            assert content, "a plain file has content"
                            came(member.name, _write(content, into(member.name), advance=advance))
            except tarfile.TarError:
                output.read()  # the program's exit code gives the reason, and a file that did not come is not counted

    @contextmanager
    def _running(self, script: str) -> Iterator[tuple[IO[bytes], Callable[[], list[str]]]]:
        """Run a script there; yield its output, and a function that returns the lines of its errors once that is read.

        Raises:
            UserError: it could not be run to its end.
        """
        entering = f"cd -- {shlex.quote(self.folder)} || exit {_NO_SUCH_FOLDER}\n" if self.folder else ""
        # The output shows how single programs ended; the shell's own exit code is that of the connection.
        text = f"LC_ALL=C; export LC_ALL\n{entering}{script}\nexit 0\n"
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as messages:
            given.write(os.fsencode(text))
            given.seek(0)
            command = [*self.shell, "sh"]
            try:
                process = subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=messages)
            except OSError as error:
                raise UserError(
                    f"{command[0]} cannot be run: {error.strerror}. Received: {shlex.join(command)}. Install it"
                ) from None
            assert process.stdout

            def errors() -> list[str]:
                process.wait()
                messages.seek(0)
                return messages.read().decode(errors="replace").splitlines()

            try:
                yield process.stdout, errors
                self._check_end(process, errors())
            finally:
                process.stdout.close()  # it writes no more, and ends
                if process.poll() is None:
                    process.terminate()
                    process.wait()

    def _check_end(self, process: "subprocess.Popen[bytes]", errors: list[str]) -> None:
        if process.returncode == _NO_SUCH_FOLDER:
            raise UserError(f"there is no such folder. Received: {_last(errors)}. Name the folder of the runs there")
        if process.returncode:
            raise UserError(
                f"the connection failed, or broke. Received: {_last(errors)} ({shlex.join(self.shell) or 'sh'}, exit "
                f"code {process.returncode}). Give the same command again: runs that have come whole are kept"
            )


@contextmanager
def _readable(answer: bytes) -> Iterator[None]:
    """Raise UserError for an answer of another form."""
    try:
        yield
    except ValueError:
        raise UserError(
            f"what came is no answer. Received: {answer[:200]!r}. GNU find, tar and sha256sum are needed"
        ) from None


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file here."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shown(name: str | Path) -> str:
    """Return a printable name, whatever characters it has."""
    text = os.fsencode(name).decode(errors="replace")
    return text if text.isprintable() else repr(text)


def _write(content: IO[bytes], path: Path, *, advance: Callable[[int], object]) -> str:
    """Write a file from a stream; return its SHA-256.

    Raises:
        tarfile.TarError: the stream ends before it.
    """
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        while block := content.read(BLOCK_BYTES):
            file.write(block)
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def _fed(names: Sequence[str], command: str) -> str:
    """Return the lines of a script that hand names to a command, each with a zero byte after it."""
    text = base64.encodebytes(b"".join(os.fsencode(name) + b"\0" for name in names)).decode()
    return f"base64 -d <<'end of names' | {command}\n{text}end of names"


def _last(lines: Sequence[str]) -> str:
    return lines[-1] if lines else "no reason"
