"""Damaged files, and files that are made to harm: one line or an answer, and nothing else (see `fuzzing.py`)."""

import gzip
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from fuzzing import check_reader, in_bounds
from readers import PICKLES, READERS, TOML, above, of_images, of_sheets, tar_of, unpack_bundle, written_alike, zip_of

from common.data import formats, sources
from common.data.formats import FormatError
from common.data.images.folder import load_images
from common.data.images.prepared_file import load_prepared
from common.data.sources import SourceError, unpack_package
from common.errors import UserError
from launch.offline import bundle


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
_DOUBLED = b"c_codecs\nencode\n" * 40 + b"C\x10" + b"a" * 16 + b"X\x03\x00\x00\x00hex\x86R" * 40
_LISTS = b"(lp0\nI1\na" + b"".join(b"0(lp%d\n" % (level + 1) + b"g%d\na" % level * 10 for level in range(9))
HARMFUL = {
    "runs a command": b"cos\nsystem\n(S'touch %s'\ntR." % TOUCHED.encode(),
    "imports a module": b"cbuiltins\n__import__\n(S'antigravity'\ntR.",
    "takes a method": b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
    "an array of 3 TB": b"cnumpy\nndarray\n((I3000000000000\nttR.",
    "bytes that double 40 times": _DOUBLED + b".",
    "an object with a large number": b"]r\xff\xff\xff\x7f.",
    "a number of 5,000 digits": b"I" + b"9" * 5000 + b"\n.",
}


@pytest.mark.parametrize("content", HARMFUL.values(), ids=HARMFUL)
def test_a_pickle_does_no_harm(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with in_bounds():
        try:
            loaded = formats.load_arrays_pickle(content)
        except FormatError as error:
            assert "\n" not in str(error)
        else:
            assert isinstance(loaded, np.ndarray) and loaded.nbytes == 0
    assert not Path(TOUCHED).exists()


def test_a_pickle_of_lists_in_lists_becomes_no_array(tmp_path):
    """Ten lists, each with ten times the one before: a billion labels in 500 bytes."""
    written_alike(PICKLES, lambda: b"(C\x06labels" + _LISTS + b"d.")(tmp_path)
    with in_bounds(), pytest.raises(FormatError, match="the CIFAR pickle has another layout"):
        formats.read_cifar_pickle_folder(tmp_path)


# Data sets


def test_a_gzip_file_that_becomes_very_large_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MOST_BYTES", 2**20)
    content = gzip.compress(bytes(50 * 2**20), compresslevel=1)
    assert len(content) < 2**20
    written_alike([f"{name}.gz" for name in formats.IDX_FILES], lambda: content)(tmp_path)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
    for read in (formats.read_idx_folder, formats.read_cifar_archive_folder):
        with in_bounds(), pytest.raises(FormatError, match="becomes larger than"):
            read(tmp_path)


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
    of_sheets("test_batch.png")(tmp_path).write_bytes(png_of(side, side))
    with in_bounds(), pytest.raises(FormatError, match="pixels"):
        formats.read_cifar_png_folder(tmp_path)
    assert not [warning for warning in recwarn if "bomb" in str(warning.message).lower()]


@pytest.mark.parametrize("shape", [(0, 2**32 - 1, 2**32 - 1), (2**32 - 1,) * 3, (2**31, 2**31, 4), (1,) * 255, ()])
def test_an_idx_file_of_an_impossible_shape_is_one_line(shape):
    content = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    for values in (b"", b"1", b"1" * 100):
        with in_bounds(), pytest.raises(FormatError):
            formats.decode_idx(content + values)


def test_labels_that_are_none_are_one_line(tmp_path):
    file = of_sheets("train_lables.json")(tmp_path)
    for text in ("[" * 10_000, "[" + "9" * 5000 + "]", "[300]", "[null]", "{}", "1", '["1"]'):
        file.write_text(text)
        with pytest.raises(FormatError):
            formats.read_cifar_png_folder(tmp_path)


def test_a_prepared_file_with_a_header_without_end_is_one_line(tmp_path):
    for text in ("[" * 10_000, '{"__metadata__": {"description": ' * 10_000, "9" * 5000):
        (tmp_path / "prepared").write_bytes(len(text).to_bytes(8, "little") + text.encode())
        with pytest.raises(UserError, match=r"header is damaged"):
            load_prepared(tmp_path / "prepared", name="prepared")


# Archives

OUTSIDE = ("../outside", "/tmp/outside-of-a-package", "bundle/../../outside")


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_is_written_outside(name, tmp_path):
    (tmp_path / "a.tgz").write_bytes(tar_of({name: b"abc"}, mode="w:gz"))
    with pytest.raises(SourceError, match="is outside the package"):
        unpack_package(tmp_path / "a.tgz", tmp_path / "in" / "folder")
    (tmp_path / "a.whl").write_bytes(zip_of({name: b"abc"}))
    unpack_package(tmp_path / "a.whl", tmp_path / "in" / "folder")  # zipfile leaves such parts of names out
    (tmp_path / "a.tar").write_bytes(tar_of({name: b"abc"}, mode="w"))
    with pytest.raises(UserError, match="leads out of the bundle"), bundle.unpacked(tmp_path / "a.tar", near=tmp_path):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"a.tgz", "a.whl", "a.tar", "in"}
    assert not Path(OUTSIDE[1]).exists()


def test_a_package_that_becomes_very_large_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_UNPACKED", 10_000)
    contents = {name: bytes(6_000) for name in "ab"}
    (tmp_path / "a.tgz").write_bytes(tar_of(contents, mode="w:gz"))
    (tmp_path / "a.whl").write_bytes(zip_of(contents))
    for name in ("a.tgz", "a.whl"):
        with pytest.raises(SourceError, match="becomes larger than"):
            unpack_package(tmp_path / name, tmp_path / "unpacked")


def long_name(file):
    """A header that says that a name of 3 GB follows, and the file is as long."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 3 * 2**30
    file.write(header.tobuf(tarfile.GNU_FORMAT))
    file.truncate(4 * 2**30)


def sparse_file(file):
    """A few bytes that would become 100 MB."""
    header = bytearray(tarfile.TarInfo("bundle/a").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[483:495] = b"%011o\0" % (100 * 2**20)
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(struct.unpack("512B", header))
    file.write(bytes(header) + bytes(1024))


@pytest.mark.parametrize(
    ("write", "line"), [(long_name, "not a complete tar file"), (sparse_file, "it is not a plain file")]
)
def test_a_bundle_that_becomes_very_large_is_one_line(write, line, tmp_path):
    with (tmp_path / "a.tar").open("wb") as file:
        write(file)
    with in_bounds(), pytest.raises(UserError, match=line):
        unpack_bundle(tmp_path / "a.tar")
