"""A folder of images as a data set: layouts, splits, conversions and their notes, the cache's key, errors."""

import os
import zlib

import numpy as np
import pytest
from builders import make_config, make_task, make_world
from given.common import pets
from made_images import write_image
from PIL import ExifTags, Image

from common.__main__ import main
from common.data.images import folder as images
from common.data.loading import load_dataset
from common.distributed.console import Console
from common.errors import UserError
from common.run.console_report import warning_lines


@pytest.fixture
def alone(tmp_path, cache):
    """A folder for the only image of a class."""
    (tmp_path / "made/a").mkdir(parents=True)
    return tmp_path / "made/a"


def exif_of(orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


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


LEFT_OUT = (
    "left out of the folder of images, hidden: 2, such as .git",
    "left out of the folder of images, next to the class folders: 1, such as README",
    "left out of the folder of images, no images by their suffix: 1, such as cat/notes.txt",
)


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
    assert dataset.notes == LEFT_OUT
    folder.rename(tmp_path / "moved")
    np.testing.assert_array_equal(load_dataset(f"images:{tmp_path / 'moved'}").test.images, dataset.test.images)


@pytest.mark.parametrize("validation", ["val", "valid", "validation", None])
@pytest.mark.parametrize("test", ["test", None])
def test_folders_for_training_validation_and_test_are_used_as_their_names_say(validation, test, tmp_path, cache):
    validation = validation or (None if test else "val")
    parts = {"train": 30, validation: 20, test: 10}
    for part, value in parts.items():
        for label, name in enumerate(("cat", "dog") if part else ()):
            for number in range(value // 10):
                write_image(tmp_path / f"pets/{part}/{name}/{number}.png", 100 * label + value + number)
    (tmp_path / "pets/labels.csv").touch()
    turned = tmp_path / f"pets/{validation or test}/cat/0.png"
    Image.open(turned).save(turned, exif=exif_of(3))
    images = len(list(tmp_path.rglob("*.png")))
    dataset = load_dataset(f"images:{tmp_path}/pets")
    training, validated, tested = ([30, 31, 32, 130, 131, 132], [20, 21, 120, 121], [10, 110])
    own = validated if validation else []
    assert dataset.train.images[:, 0, 0, 0].tolist() == training + own
    assert dataset.train.labels.tolist() == [value // 100 for value in training + own]
    assert dataset.validation_samples == len(own)
    assert dataset.test.images[:, 0, 0, 0].tolist() == (tested if test else validated)
    assert dataset.mean == pytest.approx([np.mean(training) / 255] * 3), "of training images alone"
    notes = ["left out of the folder of images, next to training, validation and test: 1, such as labels.csv"]
    if not test:
        notes.append(f"there is no folder test: the test uses the same images as the validation, those of {validation}")
    notes.append(f"images rotated upright, following their EXIF data: 1 of {images}, such as {turned}")
    assert list(dataset.notes) == notes


def test_subfolders_of_classes_and_every_suffix_are_read(folder, tmp_path):
    for number, suffix in enumerate(("jfif", "JPE", "webp", "bmp")):
        write_image(folder / f"cat/more/{number}/x.{suffix}", 5)
    (tmp_path / "elsewhere").mkdir()
    write_image(tmp_path / "elsewhere/linked.png", 5)
    (folder / "cat/link").symlink_to(tmp_path / "elsewhere")
    dataset = load_dataset(f"images:{folder}")
    assert len(dataset.train) + len(dataset.test) == 85
    assert dataset.notes == LEFT_OUT


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


PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
TURNS = {  # by the orientation in the EXIF data: the image as it is seen
    1: PIXELS, 2: PIXELS[:, ::-1], 3: PIXELS[::-1, ::-1], 4: PIXELS[::-1],
    5: PIXELS.T, 6: np.rot90(PIXELS, -1), 7: PIXELS[::-1, ::-1].T, 8: np.rot90(PIXELS),
}  # fmt: skip


def write_turned(path, orientation):
    """Write pixels as a camera does that was held otherwise."""
    Image.fromarray(PIXELS).save(path, exif=exif_of(orientation), lossless=True)


def read_alone(file, **options):
    """Return the pixels of a file that is one of two classes, and the notes of the data set."""
    other = file.parents[1] / "other" / file.name
    other.parent.mkdir(exist_ok=True)
    for number in (0, 1):
        other.with_stem(str(number)).write_bytes(file.read_bytes())
    dataset = load_dataset(f"images:{file.parents[1]}", **options)
    assert len(dataset.train) == 2
    return dataset.train.images[0], list(dataset.notes)


@pytest.mark.parametrize("suffix", ["png", "webp"])
@pytest.mark.parametrize("orientation", TURNS)
def test_photographs_are_upright(orientation, suffix, alone):
    file = alone / f"0.{suffix}"
    write_turned(file, orientation)
    pixels, notes = read_alone(file, gray=True)
    np.testing.assert_array_equal(pixels[..., 0], TURNS[orientation])
    example = f"images rotated upright, following their EXIF data: 3 of 3, such as {file}"
    assert notes == ([example] if orientation > 1 else [])
    assert read_alone(file, gray=True) == (pytest.approx(pixels), notes), "from the cache, too"


def test_damaged_exif_data_turn_nothing_and_those_behind_the_pixels_are_found(alone):
    file = alone / "0.png"
    write_turned(file, 6)
    content = file.read_bytes()
    start = content.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(content[start : start + 4], "big")
    chunk = content[start:end]
    last = content.rindex(b"IEND") - 4
    file.write_bytes(content[:start] + content[end:last] + chunk + content[last:])
    with pytest.raises(UserError, match=r"2 of 2 training images .*6 x 4 pixels, unlike its header"):
        read_alone(file, gray=True)
    assert read_alone(file, gray=True, image_size=(6, 4))[0][..., 0].tolist() == TURNS[6].tolist()
    broken = b"\0\0\0\x02eXIf??"
    broken += zlib.crc32(broken[4:]).to_bytes(4, "big")
    file.write_bytes(content[:start] + broken + content[end:])
    pixels, notes = read_alone(file, gray=True)
    assert pixels[..., 0].tolist() == PIXELS.tolist() and not notes


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_what_is_transparent_becomes_white(mode, alone):
    """A drawing: a black line on transparency, whose hidden color is black, too."""
    line = np.zeros((4, 6), np.uint8)
    line[1] = 255
    layers = np.dstack([line * 0, line]) if mode == "LA" else np.dstack([line * 0, line * 0, line * 0, line])
    image, options = Image.fromarray(layers, "LA" if mode == "LA" else "RGBA"), {}
    if mode == "P":
        image = Image.fromarray(line // 255).convert("P")
        image.putpalette([0, 0, 0, 0, 0, 0])
        options = {"transparency": 0}
    elif mode == "RGB":
        image = Image.fromarray(np.dstack([line // 255] * 3))  # nearly black
        options = {"transparency": (0, 0, 0)}
    image.save(alone / "0.png", **options)
    pixels, notes = read_alone(alone / "0.png")
    assert pixels[[0, 2, 3]].min() == 255 and pixels[1].max() <= 1
    assert notes == [f"images with transparent pixels, placed on white: 3 of 3, such as {alone}/0.png"]


@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_of_an_animation_the_first_frame_is_read(suffix, alone):
    file = alone / f"0.{suffix}"
    frames = [Image.fromarray(np.dstack([PIXELS * 0 + value] * 3)) for value in (10, 200)]
    frames[0].save(file, save_all=True, append_images=frames[1:], lossless=True)
    pixels, notes = read_alone(file)
    assert (pixels == 10).all()
    assert notes[0] == f"images with several frames, of which only the first is used: 3 of 3, such as {file}"


def test_classes_and_parts_of_equal_pixels_are_named(tmp_path, cache):
    for name, values in {"a": (0, 0), "b": (0, 0), "c": (0, 9, 9)}.items():
        for number, value in enumerate(values):
            write_image(tmp_path / f"made/train/{name}/{number}.png", value)
            write_image(tmp_path / f"made/test/{name}/{number}.png", 0)
    expected = "nothing can be learned where all pixels are equal: class a (0), class b (0), the test images (0)"
    for _ in ("read", "from the cache"):
        assert load_dataset(f"images:{tmp_path}/made").notes == (expected,)


def test_notes_are_printed(folder, tmp_path, capsys):
    write_turned(folder / "cat/07.PNG", 3)
    setup = make_task(make_config(tmp_path, data={"dataset": f"images:{folder}", "gray": True}))
    lines = warning_lines(setup, make_world("cpu"))
    assert main(["datasets", "fetch", f"images:{folder}", "--gray"]) == 0
    printed = capsys.readouterr().out.splitlines()
    example = f"images rotated upright, following their EXIF data: 1 of 80, such as {folder}/cat/07.PNG"
    for note in (*LEFT_OUT, example):
        assert f"Warning: {note}" in lines and f"note: {note}" in printed


# What is refused


def test_a_class_folder_that_no_record_can_name_is_refused(tmp_path):
    """As Latin-1 archives leave them: the run would train, and nothing could read its record."""
    for name in ("dog", os.fsdecode(b"caf\xe9")):
        for number in range(10):
            write_image(tmp_path / "pets" / name / f"{number}.png")
    with pytest.raises(UserError, match=r"names are not UTF-8.* Received: caf\\udce9 in .*Rename them"):
        load_dataset(f"images:{tmp_path / 'pets'}", image_size=(8, 8))


def test_a_folder_without_permission_is_refused(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"cannot be read: Permission denied\. Received: [^\n]*\Z"):
        load_dataset(f"images:{folder}")
