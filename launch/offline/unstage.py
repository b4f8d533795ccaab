"""Set up from a bundle that `python -m launch stage` packed, on a machine without any network.

    tar xf bundle.tar && python3 bundle/unstage.py       where nothing of the project is there yet
    python -m launch unstage bundle.tar --folder DIR     where it is

One file and the standard library alone, for it is packed at the top of the bundle. It also says what a bundle is:

    bundle/manifest.json    what is in it, for which kind of machine; path, size and SHA-256 of every other file
           unstage.py       this file
           code/            the project
           wheels/          as `make wheels` fills it; for another architecture the pure-Python ones only
           datasets/NAME/   entries of the cache of data sets
           inputs/          weights and prepared images

Nothing is unpacked into its place before every file was checked, and nothing that exists is overwritten.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

FORMAT = 1
TOP = "bundle"
MANIFEST = "manifest.json"
SCRIPT = "unstage.py"
PARTS = ("code", "wheels", "datasets", "inputs")
ORIGIN = "staged.json"  # in the folder that was set up: the manifest, which tells whence the code came
UNFINISHED = ".unstage-unfinished"  # there until the last step is done: the same command then goes on
DEFAULT_FOLDER = "horovod-twins"
NEEDED_PYTHON = (3, 11)  # older ones can read this file too (hence the quoted types), to say what is missing
CHUNK = 1 << 20
EXIT_CODE_USER_ERROR = 2  # as in common.errors, which the machine may not have yet
EXIT_CODE_INTERRUPTED = 130


class UnstageError(Exception):
    """Something the user can mend; the message is one line, as that of common.errors.UserError."""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "unstage",
        help="set up from a bundle without any network",
        description="Check every file of a bundle that `stage` packed, then set up from it without any network.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command and the script both take."""
    beside = Path(__file__).resolve().parent
    default = beside if (beside / MANIFEST).exists() else None
    parser.add_argument(
        "bundle",
        type=Path,
        nargs="?" if default else None,
        default=default,
        metavar="BUNDLE",
        help="tar file or folder" + (" (default: the one that this script lies in)" if default else ""),
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(DEFAULT_FOLDER), metavar="FOLDER", help="made anew (default: %(default)s)"
    )
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="for data sets (default: the cache of this user)")
    parser.add_argument("--check", action="store_true", help="check the bundle only")


def main(arguments: "list[str] | None" = None) -> int:
    """Run as a script; another Python than the needed one hands over to it, or says so."""
    version = ".".join(map(str, NEEDED_PYTHON))
    if sys.version_info[:2] != NEEDED_PYTHON:
        other = shutil.which("python" + version)
        if other is None or "HOROVOD_TWINS_HANDED_OVER" in os.environ:
            received = f"Received: Python {sys.version.split()[0]} ({sys.executable})"
            print(f"unstage: error: Python {version} is needed. {received}. Install it or load its module, then run "
                  f"this script by python{version}", file=sys.stderr)  # fmt: skip
            return EXIT_CODE_USER_ERROR
        os.environ["HOROVOD_TWINS_HANDED_OVER"] = "1"
        os.execv(other, [other, __file__, *(sys.argv[1:] if arguments is None else arguments)])
    parser = argparse.ArgumentParser(prog=SCRIPT, description="Set up from a bundle without any network.")
    add_arguments(parser)
    try:
        return run(parser.parse_args(arguments))
    except KeyboardInterrupt:
        print("\nunstage: interrupted; the same command goes on from here", file=sys.stderr)
        return EXIT_CODE_INTERRUPTED


def run(options: argparse.Namespace) -> int:
    """Check and set up; return the exit code, 2 after one line for what the user can mend."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing half made is left behind
    try:
        bundle, folder = options.bundle.expanduser().absolute(), options.folder.expanduser().absolute()
        unstage(bundle, folder, cache=options.cache and options.cache.expanduser().absolute(), only_check=options.check)
    except UnstageError as error:
        print(f"unstage: error: {error}", file=sys.stderr)
        return EXIT_CODE_USER_ERROR
    except OSError as error:
        told = f"{error.strerror or error}. Received: {error.filename or folder}"
        print(f"unstage: error: {told}. Look at the path, its disk and its permissions", file=sys.stderr)
        return EXIT_CODE_USER_ERROR
    return 0


def unstage(bundle: Path, folder: Path, *, cache: "Path | None" = None, only_check: bool = False) -> None:
    """Check a bundle, then set up from it.

    Args:
        bundle: tar file or folder.
        folder: where the project comes to lie; must not exist, or be left by an interrupted one of the same bundle.
        cache: for data sets; None: the cache of this user.

    Raises:
        UnstageError: the bundle is damaged or for other machines, a place is taken, set-up fails.
    """
    with contextlib.ExitStack() as stack:
        if bundle.is_dir():
            opened = bundle
        else:
            near = bundle.parent if only_check else existing_parent(folder)
            opened = stack.enter_context(unpacked(bundle, near=near))
        manifest = read_manifest(opened)
        check_files(opened, manifest)
        if only_check:
            return
        check_machine(manifest)
        check_place(folder, manifest)
        datasets_folder = cache_folder(opened / "code", cache) / "datasets"
        new_datasets = check_datasets(opened / "datasets", manifest, datasets_folder)
        check_disk(folder, manifest)
        put_code(opened, folder, manifest)
        for name in new_datasets:
            put_folder(opened / "datasets" / name, datasets_folder / name)
        put_inputs(opened / "inputs", folder / "inputs")
        set_up(folder, opened / "wheels", manifest)
        (folder / UNFINISHED).unlink()
    print_next_steps(folder, manifest, cache)


def existing_parent(path: Path) -> Path:
    """Return the nearest folder above `path` that exists."""
    return next(parent for parent in path.parents if parent.is_dir())


# The bundle: opened and checked


@contextlib.contextmanager
def unpacked(archive: Path, *, near: Path) -> "Iterator[Path]":
    """Give the folder that a tar file holds, unpacked into a hidden folder in `near`, which is removed at the end.

    Raises:
        UnstageError: no tar file, cut off, or with members that are no bundle's.
    """
    if not archive.is_file():
        raise UnstageError(f"there is no such bundle. Received: {archive}. Name a tar file or folder made by `stage`")
    temporary = Path(tempfile.mkdtemp(prefix=".unstage-", dir=str(near)))
    try:
        try:
            with tarfile.open(str(archive), "r:") as tar:
                unpack(tar, temporary)
        except (tarfile.TarError, EOFError) as error:
            raise UnstageError(
                f"the bundle is no whole tar file ({error}). Received: {archive}. Copy it here again"
            ) from None
        yield temporary / TOP
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack plain files only; names that lead elsewhere, links, devices and repeated names are refused."""
    members = [member for member in tar.getmembers() if not member.isdir()]
    seen = set()
    for member in members:
        problem = problem_of_path(member.name)
        if problem is None and not member.isfile():
            problem = "it is no plain file"
        if problem is None and PurePosixPath(member.name).parts[0] != TOP:
            problem = f"it lies outside of {TOP}/"
        if problem is None and member.name in seen:
            problem = "it is there twice"
        seen.add(member.name)
        if problem:
            raise UnstageError(
                f"the tar file is no bundle of `stage`: {problem}. Received: {member.name!r}. Stage anew"
            )
    needed, free = sum(member.size for member in members), shutil.disk_usage(str(folder)).free
    if free < needed:
        raise UnstageError(disk_is_short(needed, free, folder.parent))
    progress = Progress("unpacking", needed)
    for member in members:
        target = folder / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        content = tar.extractfile(member)
        assert content is not None, member.name  # a plain file has content
        with content, target.open("wb") as file:
            shutil.copyfileobj(content, file, CHUNK)
        progress.add(member.size)
    progress.end()


def problem_of_path(path: str) -> "str | None":
    """Return why a path in a bundle cannot be one; None if it can. Nothing is asked of the file system."""
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or "." in parts or "" in parts:
        return "a path that leads out of the bundle"
    if "\\" in path or any(ord(letter) < 32 for letter in path):
        return "a path with signs that no name here has"
    return None


def read_manifest(folder: Path) -> "dict[str, Any]":
    """Return the list of what a bundle holds, checked against its own checksum.

    Raises:
        UnstageError: it is missing, damaged, or of a newer program.
    """
    path = folder / MANIFEST
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        manifest, checksum = written["manifest"], written["sha256"]
    except FileNotFoundError:
        raise UnstageError(
            f"a bundle has a {MANIFEST}. Received: {folder}, without. Name one made by `stage`"
        ) from None
    except (ValueError, TypeError, KeyError):
        raise UnstageError(
            f"the bundle is damaged: {MANIFEST} cannot be read. Received: {path}. Copy it again"
        ) from None
    if checksum != sha256_of_manifest(manifest):
        raise UnstageError(f"the bundle is damaged: {MANIFEST} has another checksum. Received: {path}. Copy it again")
    if manifest["format"] != FORMAT:
        told = f"Received: format {manifest['format']}, this program reads {FORMAT}"
        raise UnstageError(f"the bundle is of another version of `stage`. {told}. Use the {SCRIPT} in the bundle")
    for file in manifest["files"]:
        top = PurePosixPath(file["path"]).parts[:1]
        if problem_of_path(file["path"]) or top[0] not in (*PARTS, SCRIPT):
            raise UnstageError(f"the bundle's list names no file of a bundle. Received: {file['path']!r}. Stage anew")
    return dict(manifest)


def sha256_of_manifest(manifest: "dict[str, Any]") -> str:
    """Return the checksum of a manifest, whatever its layout."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def check_files(folder: Path, manifest: "dict[str, Any]") -> None:
    """Check that a bundle holds the files that are listed, as they were, and no others.

    Raises:
        UnstageError: names the first file that is damaged, missing or additional.
    """
    listed = {file["path"]: file for file in manifest["files"]}
    found = set(files_of(folder)) - {MANIFEST}
    for path in sorted(found - set(listed)):
        raise UnstageError(f"the bundle has a file too many. Received: {path}. Remove it, or copy the bundle again")
    for path in sorted(set(listed) - found):
        raise UnstageError(f"the bundle lacks a file. Received: none at {path}. Copy the bundle again")
    progress = Progress("checking", sum(file["bytes"] for file in listed.values()))
    for path, file in sorted(listed.items()):
        if (folder / path).is_symlink() or not (folder / path).is_file():
            raise UnstageError(f"the bundle holds plain files only. Received: {path}. Copy the bundle again")
        size = (folder / path).stat().st_size
        if size != file["bytes"]:
            told = f"{size} bytes instead of {file['bytes']}"
            raise UnstageError(f"a file of the bundle is damaged. Received: {path}, {told}. Copy the bundle again")
        if sha256_of_file(folder / path, progress) != file["sha256"]:
            raise UnstageError(
                f"a file of the bundle is damaged. Received: {path}, another SHA-256. Copy the bundle again"
            )
    progress.end()


def files_of(folder: Path) -> "list[str]":
    """Return the paths of all that is no folder, relative; links are not followed."""
    found = []
    for place, folders, files in os.walk(str(folder)):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        found += [(Path(place) / name).relative_to(folder).as_posix() for name in (*files, *links)]
    return found


def sha256_of_file(path: Path, progress: "Progress | None" = None) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            digest.update(chunk)
            if progress:
                progress.add(len(chunk))
    return digest.hexdigest()


# What can be known to be wrong before anything is made


def check_machine(manifest: "dict[str, Any]") -> None:
    """Check that this is the kind of machine that the bundle is for; say what will take longer than thought.

    Raises:
        UnstageError: another architecture.
    """
    target = manifest["target"]
    if platform.machine() != target["architecture"]:
        received = f"Received: {platform.machine()} here, {target['architecture']} in the bundle"
        raise UnstageError(f"the bundle is for another kind of machine. {received}. Stage one with --architecture")
    glibc = "".join(platform.libc_ver())
    if manifest["setup"]["wheels"] == "all" and glibc != target["glibc"]:
        print(
            f"note: {glibc} here, {target['glibc']} where Horovod was built: it is built anew, which needs a compiler"
        )


def check_place(folder: Path, manifest: "dict[str, Any]") -> None:
    """Raise UnstageError unless the folder is free or left by an interrupted set-up from the same bundle."""
    if not (folder.exists() or folder.is_symlink()):
        return
    mark = folder / UNFINISHED
    if not mark.is_file():
        raise UnstageError(f"nothing is overwritten. Received: {folder}, which exists. Name another: --folder DIR")
    if mark.read_text(encoding="utf-8") != sha256_of_manifest(manifest):
        raise UnstageError(
            f"set-up from another bundle was begun there. Received: {folder}. Name another: --folder DIR"
        )


def cache_folder(code: Path, named: "Path | None") -> Path:
    """Return the cache as the project itself finds it; from the bundle's code, which was checked."""
    if named:
        return named
    sys.path.insert(0, str(code))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing may be added to the bundle
    try:
        from common.utils.cache_folder import cache_folder as of_this_user
    finally:
        sys.dont_write_bytecode = writes
        sys.path.remove(str(code))
    return of_this_user()


def check_datasets(folder: Path, manifest: "dict[str, Any]", cached: Path) -> "list[str]":
    """Return the data sets that the cache lacks.

    Raises:
        UnstageError: it has one of that name whose arrays are others.
    """
    missing = []
    for name in manifest["datasets"]:
        if not (cached / name).exists():
            missing.append(name)
            continue
        for file in (folder / name).glob("*.npy"):
            there = cached / name / file.name
            if not there.is_file() or sha256_of_file(there) != sha256_of_file(file):
                raise UnstageError(
                    f"the cache has another data set of that name. Received: {cached / name}. Remove it if it is "
                    "damaged, or name another cache: --cache DIR"
                )
        print(f"{name} is in the cache already: {cached / name}")
    return missing


def check_disk(folder: Path, manifest: "dict[str, Any]") -> None:
    """Raise UnstageError if code, data and inputs do not fit; what the packages need, set-up knows."""
    needed = sum(file["bytes"] for file in manifest["files"] if not file["path"].startswith("wheels/"))
    free = shutil.disk_usage(str(existing_parent(folder))).free
    if free < needed:
        raise UnstageError(disk_is_short(needed, free, folder))


def disk_is_short(needed: int, free: int, place: Path) -> str:
    """Return what to tell of a disk that is too small; sizes in bytes."""
    return f"the disk is too full. Received: {size_of(free)} free at {place}, needed {size_of(needed)}. Make room there"


# Putting things in their places


def put_code(bundle: Path, folder: Path, manifest: "dict[str, Any]") -> None:
    """Put the project where it is to lie, in one step; programs stay programs. An unfinished one is left as it is."""
    if folder.exists():
        print(f"going on in {folder}")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=str(folder.parent)))
    try:
        for file in manifest["files"]:
            top, _, path = file["path"].partition("/")
            if top == "code":
                (partial / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(bundle / file["path"]), str(partial / path))
                if file["executable"]:
                    (partial / path).chmod((partial / path).stat().st_mode | 0o111)
        shutil.copyfile(str(bundle / MANIFEST), str(partial / ORIGIN))
        (partial / UNFINISHED).write_text(sha256_of_manifest(manifest), encoding="utf-8")
        partial.chmod(0o777 & ~current_umask())  # mkdtemp makes it for this user alone
        partial.rename(folder)
    finally:
        shutil.rmtree(str(partial), ignore_errors=True)
    print(f"code: {folder}")


def current_umask() -> int:
    """Return the permissions that new files of this process lack; it can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def put_folder(source: Path, target: Path) -> None:
    """Copy a folder under another name, then rename it: a reader never sees half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        shutil.copytree(str(source), str(partial))
        partial.rename(target)
    finally:
        shutil.rmtree(str(partial), ignore_errors=True)
    print(f"data set {target.name}: {target}")


def put_inputs(source: Path, target: Path) -> None:
    """Copy weights and prepared images, if there are any, each under another name first."""
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        target.mkdir(exist_ok=True)
        half = target / f".{path.name}.half"
        try:
            shutil.copyfile(str(path), str(half))
            half.rename(target / path.name)
        finally:
            with contextlib.suppress(FileNotFoundError):
                half.unlink()
        print(f"input: {target / path.name}")


def set_up(folder: Path, wheels: Path, manifest: "dict[str, Any]") -> None:
    """Make the project's environment from the wheels, as far as the bundle has them.

    Raises:
        UnstageError: it fails; what failed was printed.
    """
    setup = manifest["setup"]
    if setup["wheels"] == "none":
        print("the bundle has no wheels: packages are not set up")
    elif setup["wheels"] == "pure":
        set_up_on_modules(folder, wheels, setup)
    else:
        gpu = "--gpu" if setup["gpu"] else "--no-gpu"
        command = [sys.executable, "launch/setup.py", "--frameworks", " ".join(setup["frameworks"]), gpu]
        run_program([*command, "--wheels", str(wheels)], folder)


def set_up_on_modules(folder: Path, wheels: Path, setup: "dict[str, Any]") -> None:
    """Make an environment on top of the packages of this Python, which a module brought; say what is still missing."""
    python = str(folder / ".venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    run_program([sys.executable, "-m", "venv", "--clear", "--system-site-packages", str(folder / ".venv")], folder)
    run_program([*pip, *(str(path) for path in sorted(wheels.glob("*.whl")))], folder)
    run_program([*pip, "--no-build-isolation", "--editable", str(folder)], folder)
    program = (
        "import importlib.metadata as m, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, 'from modules:', m.version(name.split('==')[0]))\n"
        "    except m.PackageNotFoundError: print(name, 'is missing: a module or a build here has to bring it')"
    )
    run_program([python, "-c", program, *setup["from_modules"]], folder)


def run_program(command: "list[str]", folder: Path) -> None:
    """Run one program of set-up, without what would lead it to other packages.

    Raises:
        UnstageError: it fails.
    """
    without = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    sys.stdout.flush()
    code = subprocess.run(command, cwd=str(folder), env=environment, check=False).returncode
    if code != 0:
        raise UnstageError(
            f"set-up failed; why stands above. Received: exit code {code} of {' '.join(command[1:3])}. Mend it, then "
            "run the same command: it goes on from here"
        )


def print_next_steps(folder: Path, manifest: "dict[str, Any]", cache: "Path | None") -> None:
    """Print the command to try."""
    print("done. To try it:")
    if cache:
        print(f"  export HOROVOD_TWINS_CACHE={shlex.quote(str(cache))}")
    print(f"  cd {shlex.quote(str(folder))}")
    if manifest["setup"]["wheels"] == "none":
        print("  make setup")
    framework = manifest["setup"]["frameworks"][0]
    dataset = shlex.quote(manifest["try_dataset"])
    print(f"  .venv/bin/python -m launch train --framework {framework} --np 2 -- --epochs 1 --dataset {dataset}")


class Progress:
    """How much is done and how long the rest takes: one line that is rewritten on a terminal, else one at the end."""

    def __init__(self, title: str, total: int) -> None:
        """Begin; `total` in bytes."""
        self.title, self.total, self.done = title, total, 0
        self.began = self.shown = time.monotonic()

    def add(self, count: int) -> None:
        """Tell of so many bytes done."""
        self.done += count
        now = time.monotonic()
        if sys.stderr.isatty() and now - self.shown > 0.2:
            self.shown = now
            left = (self.total - self.done) * (now - self.began) / self.done
            told = f"{size_of(self.done)} of {size_of(self.total)}, about {max(0, left):.0f} s left"
            print(f"\r{self.title}: {told}   ", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Print the sum."""
        if sys.stderr.isatty():
            print("\r" + " " * 79 + "\r", end="", file=sys.stderr, flush=True)
        print(f"{self.title}: {size_of(self.done)} in {time.monotonic() - self.began:.1f} s", flush=True)


def size_of(count: float) -> str:
    """Return bytes for people: 512 B, 1.5 kB, 340.0 MB, 1.3 GB (powers of 1000)."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.1f} GB"


if __name__ == "__main__":
    sys.exit(main())
