"""A folder of images as a data set: layouts, splits, conversions, the cache's key, errors."""

import os
from pathlib import Path

import numpy as np
import pytest
from given.common import pets
from made_images import write_image
from PIL import Image

from common.data.images import folder as images
from common.data.loading import load_dataset
from common.distributed.console import Console
from common.errors import UserError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "datasets"


@pytest.fixture
def folder(tmp_path, cache):
    """40 images `cat` of the values 0 to 39, and 40 `dog` of 100 to 139, lossless; and files to be skipped."""
    pets(tmp_path)
    root = tmp_path / "pets"
    (root / "cat/07.png").rename(root / "cat/07.PNG")
    (root / "cat/notes.txt").touch()
    (root / "cat/.hidden.png").touch()
    (root / ".git").mkdir()
    (root / "README").touch()
    return root


def test_class_folders_are_split_by_class_wherever_they_are(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "CHUNK_IMAGES", 7)
    monkeypatch.setattr(Console, "automatic_bars", lambda: True)
    dataset = load_dataset(f"images:{folder}")
    assert dataset.class_names == ("cat", "dog") and dataset.image_shape == (4, 6, 3)
    assert np.bincount(dataset.test.labels).tolist() == [6, 6]  # 15 % of 40
    assert np.bincount(dataset.train.labels).tolist() == [34, 34]
    values = [split.images[:, 0, 0, 0].astype(int) for split in (dataset.train, dataset.test)]
    assert sorted(np.concatenate(values).tolist()) == [*range(40), *range(100, 140)]
    for split, value in zip((dataset.train, dataset.test), values, strict=True):
        np.testing.assert_array_equal(split.labels, value >= 100)
        assert (np.diff(value + 1000 * split.labels) > 0).all(), "in the order of classes and names"
        assert (split.images == value[:, None, None, None]).all()
        assert isinstance(split.images, np.memmap)
    assert dataset.mean == pytest.approx([values[0].mean() / 255] * 3)
    assert dataset.standard_deviation == pytest.approx([values[0].std() / 255] * 3)
    folder.rename(tmp_path / "moved")
    np.testing.assert_array_equal(load_dataset(f"images:{tmp_path / 'moved'}").test.images, dataset.test.images)


def test_train_and_test_folders_are_kept(tmp_path, cache):
    for split, count in (("train", 3), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            for number in range(count):
                write_image(tmp_path / f"pets/{split}/{name}/{number}.png", 100 * label + number)
    dataset = load_dataset(f"images:{tmp_path}/pets")
    assert dataset.train.images[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102]
    assert dataset.test.images[:, 0, 0, 0].tolist() == [0, 1, 100, 101]
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]


def test_images_are_decoded_once_and_again_when_the_folder_changes(folder, cache, monkeypatch):
    def load(**options):
        dataset = load_dataset(f"images:{folder}", **options)
        return len(dataset.train) + len(dataset.test), len(list(cache.glob("images-pets-*")))

    assert load() == (80, 1)
    with monkeypatch.context() as patch:
        patch.setattr(images, "read_image", lambda *_, **__: pytest.fail("it is in the cache"))
        assert load() == (80, 1)
    assert load(gray=True) == (80, 2)
    write_image(folder / "dog/99.png", 20)
    assert load() == (81, 3)
    os.utime(folder / "dog/99.png", ns=(1, 1))
    assert load() == (81, 4)


def test_resizing_allows_mixed_sizes(folder):
    write_image(folder / "dog/99.jpeg", 50, size=(31, 30))
    dataset = load_dataset(f"images:{folder}", image_size=(8, 9))
    assert dataset.image_shape == (8, 9, 3)
    assert len(dataset.train) + len(dataset.test) == 81


@pytest.mark.parametrize(
    ("modes", "suffix", "gray", "channels"),
    [
        (["L", "L"], "png", False, 1),
        (["1", "1"], "png", False, 1),
        (["LA", "LA"], "png", False, 1),
        (["P", "P"], "png", False, 3),
        (["RGBA", "RGBA"], "png", False, 3),
        (["CMYK", "CMYK"], "jpg", False, 3),
        (["L", "RGB"], "png", True, 1),
    ],
)
def test_pixel_formats_become_gray_or_rgb(modes, suffix, gray, channels, tmp_path, cache):
    for name in ("a", "b"):
        for number, mode in enumerate(modes):
            write_image(tmp_path / f"made/{name}/{number}.{suffix}", 255 * number, mode=mode)
    dataset = load_dataset(f"images:{tmp_path}/made", gray=gray)
    assert dataset.image_shape[2] == channels
    values = {int(value) for split in (dataset.train, dataset.test) for value in split.images.ravel()}
    assert values == {0, 255}


def test_two_images_of_one_class_are_enough(tmp_path, cache):
    for name in ("a/1", "b/1", "b/2"):
        write_image(tmp_path / f"made/{name}.png")
    dataset = load_dataset(f"images:{tmp_path / 'made'}")
    assert (len(dataset.train), len(dataset.test)) == (2, 1)


# What is refused


def write_other_classes(folder):
    for name in ("train/a/1", "train/b/1", "test/a/1", "test/bird/1"):
        write_image(folder / f"{name}.png")


def write_bad(folder):
    for number in range(5):
        (folder / f"cat/bad-{number}.png").write_bytes(b"no image")


def write_truncated(folder):
    path = folder / "cat/short.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda folder: write_image(folder / "dog/99.png", mode="L"), r"some in color.*--gray"),
        (
            lambda folder: write_image(folder / "dog/99.png", size=(31, 30)),
            r"4 x 6: 80, e\.g\..*30 x 31: 1, e\.g\..*dog/99\.png.*--image-size",
        ),
        (write_other_classes, r"different classes.*bird"),
        (write_bad, r"cat/bad-0\.png(?!.*bad-4).*and 2 more"),  # the first few
        (write_truncated, r"cat/short\.png"),
        (lambda folder: Image.new("L", (6, 4)).save(folder / "cat/a.png", format="GIF"), "not a PNG or JPEG image"),
        (lambda folder: Image.new("I;16", (6, 4)).save(folder / "cat/a.png"), "8 bits per channel"),
    ],
)
def test_images_that_do_not_fit_together_are_one_line(write, words, folder, cache):
    write(folder)
    with pytest.raises(UserError, match=rf"^[^\n]*{words}[^\n]*\Z") as error:
        load_dataset(f"images:{folder}")
    assert "Received" in str(error.value)
    assert not list(cache.glob("images-*"))


def test_a_folder_without_permission_is_refused(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UserError, match=r"cannot be read: Permission denied\. Received: [^\n]*\Z"):
        load_dataset(f"images:{folder}")
