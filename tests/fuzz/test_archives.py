"""Damaged and hostile archives: nothing is written outside of the folder for their files, and not too much."""

import io
import struct
import tarfile
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from fuzzing import Reader, check_damaged, check_odd, in_bounds

from common.data import sources
from common.data.sources import SourceError, unpack_package
from common.errors import UserError
from launch.offline import bundle

CONTENT = b"abc" * 400


def tar_of(members, *, mode):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as tar:
        for member in members.values():
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return packed.getvalue()


def plain(*names, size=1200):
    members = {name: tarfile.TarInfo(name) for name in names}
    for member in members.values():
        member.size = size
    return members


def zip_of(*names):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, CONTENT)
    return packed.getvalue()


def of(name, content):
    def write(folder):
        (folder / name).write_bytes(content)
        return folder / name, folder / name

    return write


def unpack_elsewhere(archive):
    with tempfile.TemporaryDirectory() as folder:
        unpack_package(archive, Path(folder, "unpacked"))
        return list(Path(folder).rglob("*"))


def unpack_bundle(archive):
    with tempfile.TemporaryDirectory() as folder, bundle.unpacked(archive, near=Path(folder)) as unpacked:
        return list(unpacked.rglob("*"))


PACKAGE_ERRORS = (SourceError, OSError)
READERS = [
    Reader("npm", of("a.tgz", tar_of(plain("package/a", "package/b"), mode="w:gz")), unpack_elsewhere, PACKAGE_ERRORS),
    Reader("pip", of("a.whl", zip_of("package/a", "package/b")), unpack_elsewhere, PACKAGE_ERRORS),
    Reader("bundle", of("a.tar", tar_of(plain("bundle/a", "bundle/b"), mode="w")), unpack_bundle, (UserError, OSError)),
]
ALL = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)


@pytest.mark.ci
@ALL
def test_a_damaged_archive_is_one_line_or_an_answer(reader, tmp_path):
    check_damaged(reader, tmp_path)


@pytest.mark.ci
@ALL
def test_odd_content_alone_is_one_line(reader, tmp_path):
    check_odd(reader, tmp_path)


@pytest.mark.ci
@ALL
def test_a_large_sparse_file_takes_no_memory(reader, tmp_path):
    """Zero bytes after an archive belong to it."""
    archive, _ = reader.write(tmp_path)
    with archive.open("r+b") as enlarged:
        enlarged.truncate(10 * 2**30)
    with in_bounds(), suppress(*reader.allowed):
        reader.read(archive)


OUTSIDE = ("../outside", "/tmp/outside-of-a-package", "bundle/../../outside")


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_is_written_outside(name, tmp_path):
    (tmp_path / "a.tgz").write_bytes(tar_of(plain(name), mode="w:gz"))
    with pytest.raises(SourceError, match="is outside the package"):
        unpack_package(tmp_path / "a.tgz", tmp_path / "in" / "folder")
    (tmp_path / "a.whl").write_bytes(zip_of(name))
    unpack_package(tmp_path / "a.whl", tmp_path / "in" / "folder")  # zipfile leaves such parts of names out
    (tmp_path / "a.tar").write_bytes(tar_of(plain(name), mode="w"))
    with pytest.raises(UserError, match="leads out of the bundle"), bundle.unpacked(tmp_path / "a.tar", near=tmp_path):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"a.tgz", "a.whl", "a.tar", "in"}
    assert not Path(OUTSIDE[1]).exists()


def test_a_package_that_becomes_very_large_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_UNPACKED", 10_000)
    (tmp_path / "a.tgz").write_bytes(tar_of(plain("a", "b", size=6_000), mode="w:gz"))
    (tmp_path / "a.whl").write_bytes(zip_of(*map(str, range(10))))
    for name in ("a.tgz", "a.whl"):
        with pytest.raises(SourceError, match="becomes larger than"):
            unpack_package(tmp_path / name, tmp_path / "unpacked")


def test_a_bundle_whose_header_is_very_large_is_one_line(tmp_path):
    """The header says that a name of 3 GB follows, and the file is as long."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 3 * 2**30
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.truncate(4 * 2**30)
    with in_bounds(), pytest.raises(UserError, match="not a complete tar file"):
        unpack_bundle(tmp_path / "a.tar")


def test_a_bundle_with_a_sparse_file_is_one_line(tmp_path):
    """A few bytes of the archive would become 100 MB."""
    header = bytearray(tarfile.TarInfo("bundle/a").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[483:495] = b"%011o\0" % (100 * 2**20)
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(struct.unpack("512B", header))
    (tmp_path / "a.tar").write_bytes(bytes(header) + bytes(1024))
    with in_bounds(), pytest.raises(UserError, match="it is not a plain file"):
        unpack_bundle(tmp_path / "a.tar")
