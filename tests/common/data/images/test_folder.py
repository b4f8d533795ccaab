"""A folder of images as a data set: layouts, splits, conversions, the cache's key, errors."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.data.images import folder as images
from common.data.loading import load_dataset
from common.distributed.console import Console
from common.errors import UserError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "datasets"


def write_image(path, value, *, size=(6, 4), mode="RGB"):
    """Write an image of (height, width) pixels that all have the value given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = size
    Image.new("L", (width, height), value).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path, cache):
    """20 images `dog` with values 0 to 19 and 40 images `cat` with 100 to 139, lossless; and files to be skipped."""
    root = tmp_path / "pets"
    for number in range(20):
        write_image(root / f"dog/{number:02d}.png", number)
    for number in range(40):
        write_image(root / f"cat/{number:02d}.PNG", 100 + number)
    (root / "cat/notes.txt").touch()
    (root / "cat/.hidden.png").touch()
    (root / ".git").mkdir()
    (root / "README").touch()
    return root


def test_class_folders_are_split_by_class(folder):
    dataset = load_dataset(f"images:{folder}")
    assert dataset.class_names == ("cat", "dog") and dataset.image_shape == (6, 4, 3)
    assert np.bincount(dataset.test.labels).tolist() == [6, 3]  # 15 % of 40 and of 20
    assert np.bincount(dataset.train.labels).tolist() == [34, 17]
    values = [split.images[:, 0, 0, 0].astype(int) for split in (dataset.train, dataset.test)]
    assert sorted(np.concatenate(values).tolist()) == [*range(20), *range(100, 140)]
    for split, value in zip((dataset.train, dataset.test), values, strict=True):
        np.testing.assert_array_equal(split.labels, value < 100)
        assert (split.images == value[:, None, None, None]).all()
        assert isinstance(split.images, np.memmap)
    assert dataset.mean == pytest.approx([values[0].mean() / 255] * 3)
    assert dataset.standard_deviation == pytest.approx([values[0].std() / 255] * 3)


def test_the_split_does_not_depend_on_the_path(folder, tmp_path):
    first = load_dataset(f"images:{folder}")
    folder.rename(tmp_path / "moved")
    second = load_dataset(f"images:{tmp_path / 'moved'}")
    np.testing.assert_array_equal(first.test.images, second.test.images)


def test_train_and_test_folders_are_kept(tmp_path, cache):
    for split, count in (("train", 3), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            for number in range(count):
                write_image(tmp_path / f"pets/{split}/{name}/{number}.png", 100 * label + number)
    dataset = load_dataset(f"images:{tmp_path}/pets")
    assert dataset.train.images[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102]
    assert dataset.test.images[:, 0, 0, 0].tolist() == [0, 1, 100, 101]
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    (tmp_path / "pets/test/bird").mkdir()
    write_image(tmp_path / "pets/test/bird/1.png", 7)
    with pytest.raises(UserError, match=r"different classes.*bird"):
        load_dataset(f"images:{tmp_path}/pets")


def test_images_are_decoded_once_and_again_when_the_folder_changes(folder, cache, monkeypatch):
    decoded = []
    read_image = images.read_image

    def counted(*arguments, **settings):
        decoded.append(arguments)
        return read_image(*arguments, **settings)

    monkeypatch.setattr(images, "read_image", counted)
    name = f"images:{folder}"
    load_dataset(name)
    load_dataset(name)
    assert len(decoded) == 60 and len(list(cache.glob("images-pets-*"))) == 1
    load_dataset(name, gray=True)
    assert len(decoded) == 120
    write_image(folder / "dog/20.png", 20)
    assert len(load_dataset(name).train) + len(load_dataset(name).test) == 61
    assert len(decoded) == 181
    os.utime(folder / "dog/20.png", ns=(1, 1))
    load_dataset(name)
    assert len(decoded) == 242


def test_more_images_than_a_chunk_keep_their_order(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(images, "CHUNK_IMAGES", 7)
    for number in range(50):
        write_image(tmp_path / f"many/a/{number:03d}.png", number)
        write_image(tmp_path / f"many/b/{number:03d}.png", 100 + number)
    monkeypatch.setattr(Console, "automatic_bars", lambda: True)
    dataset = load_dataset(f"images:{tmp_path}/many")
    for split in (dataset.train, dataset.test):
        value = split.images[:, 0, 0, 0].astype(int)
        assert (np.diff(value) > 0).all()
        np.testing.assert_array_equal(split.labels, value >= 100)


def test_resizing_allows_mixed_sizes(folder):
    write_image(folder / "dog/99.jpeg", 50, size=(30, 31))
    dataset = load_dataset(f"images:{folder}", image_size=(8, 9))
    assert dataset.image_shape == (8, 9, 3)
    assert len(dataset.train) + len(dataset.test) == 61


@pytest.mark.parametrize(
    ("mode", "suffix", "channels"),
    [("L", "png", 1), ("1", "png", 1), ("LA", "png", 1), ("P", "png", 3), ("RGBA", "png", 3), ("CMYK", "jpg", 3)],
)
def test_pixel_formats_become_gray_or_rgb(tmp_path, cache, mode, suffix, channels):
    for name in ("a", "b"):
        for number in range(2):
            write_image(tmp_path / f"made/{name}/{number}.{suffix}", 255 * number, mode=mode)
    dataset = load_dataset(f"images:{tmp_path}/made")
    assert dataset.image_shape[2] == channels
    values = {int(value) for split in (dataset.train, dataset.test) for value in split.images.ravel()}
    assert values == {0, 255}


def test_gray_converts_color(tmp_path, cache):
    for name in ("a", "b"):
        for number, mode in enumerate(("L", "RGB")):
            write_image(tmp_path / f"made/{name}/{number}.png", 77, mode=mode)
    with pytest.raises(UserError, match=r"some in color.*--gray"):
        load_dataset(f"images:{tmp_path}/made")
    dataset = load_dataset(f"images:{tmp_path}/made", gray=True)
    assert dataset.image_shape[2] == 1 and (dataset.train.images == 77).all()


def refused(name, **options):
    """Return the error message for a data set, which is one line."""
    with pytest.raises(UserError) as caught:
        load_dataset(name, **options)
    assert "\n" not in str(caught.value) and "Received" in str(caught.value)
    return str(caught.value)


def test_mixed_sizes_are_refused(folder):
    write_image(folder / "dog/99.png", 50, size=(30, 31))
    message = refused(f"images:{folder}")
    assert "6 x 4: 60, e.g." in message and "30 x 31: 1, e.g." in message and "dog/99.png" in message
    assert "--image-size" in message


def test_unreadable_images_are_refused_with_the_first_few(folder, cache):
    for number in range(5):
        (folder / f"cat/bad-{number}.png").write_bytes(b"no image")
    message = refused(f"images:{folder}")
    assert "cat/bad-0.png" in message and "and 2 more" in message and "bad-4" not in message
    assert not list(cache.glob("images-*"))


def test_a_truncated_image_is_refused(folder, cache):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 3), dtype=np.uint8)
    path = folder / "cat/short.png"
    Image.fromarray(pixels).save(path)
    path.write_bytes(path.read_bytes()[:-30])
    assert "cat/short.png" in refused(f"images:{folder}")
    assert not list(cache.glob("images-*"))


def test_other_formats_and_16_bits_are_refused(folder):
    Image.new("L", (4, 6)).save(folder / "cat/gif.png", format="GIF")
    assert "not a PNG or JPEG image" in refused(f"images:{folder}")
    Image.fromarray(np.zeros((6, 4), np.uint16)).save(folder / "cat/gif.png")
    assert "8 bits per channel" in refused(f"images:{folder}")


def test_two_images_of_one_class_are_enough(tmp_path, cache):
    for name in ("a/1", "b/1", "b/2"):
        write_image(tmp_path / f"made/{name}.png", 1)
    dataset = load_dataset(f"images:{tmp_path / 'made'}")
    assert (len(dataset.train), len(dataset.test)) == (2, 1)


def test_a_folder_without_permission_is_refused(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert "Permission denied" in refused(f"images:{folder}")
