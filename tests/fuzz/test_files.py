"""Damaged files, and files that are made to harm: one line or an answer, and nothing else (see `fuzzing.py`)."""

import gzip
import struct
import tarfile
import zlib
from pathlib import Path

import pytest
from fuzzing import check_reader, in_bounds
from readers import PICKLES, READERS, TOML, above, of_images, read_published, unpack_bundle, written_alike

from common.data import sources
from common.data.catalog import PUBLISHED
from common.data.images.folder import load_images
from common.data.images.prepared_file import load_prepared
from common.data.sources import SourceError
from common.errors import UserError


@pytest.mark.ci
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_damage_is_one_line_or_an_answer(reader, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path_factory.mktemp("cache")))  # beside what is watched
    check_reader(reader, tmp_path)


# What broke once: it ended in a traceback, or took all memory.
BROKE_TOML = {
    "levels": b"a = " + b"[\n" * 10_000,
    "tables": b"a = " + b"{a=" * 3000,
    "a key of many parts": b"a." * 100_000 + b"a = 1",
    "keys": b".".join([b"a"] * 2000) + b" = 1",
    "digits": b"a = " + b"9" * 5000,
    "hexadecimal digits": b"a = 0x" + b"f" * 9000,
}


@pytest.mark.parametrize(("write", "read"), TOML.values(), ids=TOML)
def test_toml_without_end_is_one_line(write, read, tmp_path):
    file = write(tmp_path)
    for content in BROKE_TOML.values():
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"^[^\n]+\Z"):
            read(file)


# Pickles

TOUCHED = "touched"
HARMFUL = {
    "runs a command": b"cos\nsystem\n(S'touch %s'\ntR." % TOUCHED.encode(),
    "imports a module": b"cbuiltins\n__import__\n(S'antigravity'\ntR.",
    "takes a method": b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
    "an array of 3 TB": b"cnumpy\nndarray\n((I3000000000000\nttR.",
    "an object with a large number": b"]r\xff\xff\xff\x7f.",
}


@pytest.mark.parametrize("content", HARMFUL.values(), ids=HARMFUL)
def test_a_pickle_that_is_not_the_published_one_is_not_read(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written_alike(PICKLES, lambda: content)(tmp_path)
    with in_bounds(), pytest.raises(SourceError, match=r"wrong MD5[^\n]*data_batch_1"):
        read_published("cifar10", tmp_path)
    assert not Path(TOUCHED).exists()


# Data sets


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_gzip_file_that_becomes_very_large_is_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_BYTES", 2**20)
    content = gzip.compress(bytes(50 * 2**20), compresslevel=1)
    assert len(content) < 2**20
    packaging = PUBLISHED[name].packagings[0]
    names = [f"{name}.gz" for name in packaging.md5] if name == "mnist" else [packaging.archive]
    written_alike(names, lambda: content)(tmp_path)
    with in_bounds(), pytest.raises(SourceError, match="becomes larger than"):
        read_published(name, tmp_path)


def png_of(width, height):
    """Return a PNG whose header alone has so many pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(bytes(1000))
    chunks = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (header, data)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("side", [14_000, 30_000, 2**31 - 1])
def test_an_image_of_very_many_pixels_is_one_line(side, tmp_path, recwarn):
    folder = above(of_images("png")(tmp_path))
    for file in folder.rglob("*.png"):
        file.write_bytes(png_of(side, side))
    with in_bounds(), pytest.raises(UserError, match=r"images are not readable[^\n]*pixels"):
        load_images(folder, name="images")
    assert not [warning for warning in recwarn if "bomb" in str(warning.message).lower()]


def test_a_prepared_file_with_a_header_without_end_is_one_line(tmp_path):
    for text in ("[" * 10_000, '{"__metadata__": {"description": ' * 10_000, "9" * 5000):
        (tmp_path / "prepared").write_bytes(len(text).to_bytes(8, "little") + text.encode())
        with pytest.raises(UserError, match=r"header is damaged"):
            load_prepared(tmp_path / "prepared", name="prepared")


# Archives


def long_name(file):
    """A header that says that a name of 3 GB follows, and the file is as long."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 3 * 2**30
    file.write(header.tobuf(tarfile.GNU_FORMAT))
    file.truncate(4 * 2**30)


def sparse_file(file, size=100 * 2**20, name="bundle/data_batch_1.bin"):
    """A few bytes that would become 100 MB."""
    header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[483:495] = b"%011o\0" % size
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(struct.unpack("512B", header))
    file.write(bytes(header) + bytes(1024))


@pytest.mark.parametrize("write", [long_name, lambda file: sparse_file(file, size=2**33 - 1)])
def test_an_archive_of_a_data_set_that_becomes_very_large_is_one_line(write, tmp_path):
    with (tmp_path / "cifar-10-binary.tar").open("w+b") as file:
        write(file)
        file.seek(0)
        (tmp_path / "cifar-10-binary.tar.gz").write_bytes(gzip.compress(file.read(2**20)))
    with in_bounds(), pytest.raises(SourceError, match=r"cannot be read [^\n]*\Z"):
        read_published("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("write", "line"), [(long_name, "not a complete tar file"), (sparse_file, "it is not a plain file")]
)
def test_a_bundle_that_becomes_very_large_is_one_line(write, line, tmp_path):
    with (tmp_path / "a.tar").open("wb") as file:
        write(file)
    with in_bounds(), pytest.raises(UserError, match=line):
        unpack_bundle(tmp_path / "a.tar")
