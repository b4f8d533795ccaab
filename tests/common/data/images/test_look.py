"""A look at images before training: counts, flags and notes are those of what training reads; the page."""

import base64
import html
import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
from browser import started_browser
from given.common import folders, misfits, odd_files, parts, pets
from made_images import write_deep_color, write_image
from PIL import ExifTags, Image

from common.__main__ import main
from common.data.images.findings import COPIES, ONE_COLOR, UNREADABLE
from common.data.images.look import look_at
from common.data.images.prepare import Settings, prepare
from common.data.loading import load_dataset
from common.errors import UserError

EVIL = "<img src=x onerror=alert(1)>"


def write_noise(path, *, number, mode="RGB", size=(60, 40), **options):
    """Write an image that is like no other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path, **options)


def copy(old, new):
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_bytes(old.read_bytes())


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """A folder of what people have: many cats, fewer dogs, five birds, and an empty class."""
    root = tmp_path_factory.mktemp("look") / "zoo"
    for number in range(70):
        write_noise(root / f"cat/{number:02d}.png", number=number)
    for number in range(10):
        write_noise(root / f"dog/{number:02d}.jpg", number=100 + number)
    for number in range(5):
        write_noise(root / f"{EVIL} & co/{number}.png", number=200 + number)
    (root / "empty").mkdir()
    # Changed as they are read
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    write_noise(root / "dog/turned.jpg", number=300, exif=exif)
    write_noise(root / "dog/cmyk.jpg", number=301, mode="CMYK")
    write_noise(root / "dog/gray.png", number=302, mode="L")
    write_noise(root / "dog/large.png", number=303, size=(640, 480))
    palette = Image.fromarray(np.eye(40, 60, dtype=np.uint8)).convert("P")
    palette.putpalette([0, 0, 0, 200, 10, 10])
    palette.save(root / "cat/palette.png", transparency=0)
    frames = [Image.new("RGB", (60, 40), color) for color in ("red", "blue")]
    frames[0].paste("white", (0, 0, 5, 5))
    frames[0].save(root / "cat/animated.webp", save_all=True, append_images=frames[1:], lossless=True)
    # One color, one of them as it is seen only: black on transparency, of which black is hidden
    write_image(root / "cat/black.png", 0, size=(60, 40))
    Image.new("RGB", (60, 40), (200, 0, 0)).save(root / "dog/red.png")
    Image.new("RGBA", (60, 40), (0, 0, 0, 0)).save(root / "cat/unseen.png")
    # Copies, with odd names
    copy(root / "cat/03.png", root / "dog/copy.png")
    copy(root / "cat/04.png", root / "cat/copy.png")
    copy(root / "cat/05.png", root / "cat/new\nline\u202e.png")
    copy(root / "cat/06.png", Path(os.fsdecode(os.fsencode(root) + b"/cat/\xff\xfe.png")))
    # Not readable, or not read
    write_deep_color(root / "cat/deep.png")
    Image.new("I;16", (6, 4)).save(root / "cat/sixteen.png")
    (root / "dog/empty.png").touch()
    (root / "dog/text.png").write_text("no image")
    write_noise(root / "dog/short.png", number=304)
    (root / "dog/short.png").write_bytes((root / "dog/short.png").read_bytes()[:-900])
    for name in ("cat/.hidden.png", "cat/notes.txt", "README", "dog/moving.gif"):
        (root / name).touch()
    return root


@pytest.fixture(scope="module")
def seen(zoo):
    return look_at(zoo)


@pytest.mark.parametrize(
    "line",
    [
        r"training refuses this folder: 1 image file in unsupported formats\. Received: dog/moving\.gif .*",
        r"training refuses this folder: class folders without .* files\. Received: empty .*",
        r"training refuses this folder: images of different sizes .*480 x 640: 1, e\.g\. dog/large\.png.*",
        r"training refuses this folder: some images are gray .*1 channel\(s\): 1, e\.g\. dog/gray\.png.*",
        rf"classes too small for `images prepare --split 85/2/13`, .*: 3, such as {re.escape(EVIL)} & co \(5\), dog.*",
        r"images that are not readable, which training refuses and .*: 5, such as .*; and 2 more",
        r"classes without training images: 1, such as empty",
        r"classes without test images: 1, such as empty",
        rf"classes with fewer than 10 test images: 2, such as {re.escape(EVIL)} & co, dog",
        r"equal images in several classes: 1, such as cat/03\.png \(training\) = dog/copy\.png \(training\)",
        r"images of one color: 3, such as .*",
    ],
)
def test_what_looks_wrong_is_flagged(line, seen):
    assert [flag for flag in seen.flags() if re.fullmatch(line, flag)]
    assert len(seen.flags()) == 11, "and nothing else"


@pytest.mark.parametrize(
    "line",
    [
        r"left out of the folder of images, hidden: 1, such as cat/\.hidden\.png",
        r"left out of the folder of images, next to the class folders: 1, such as README",
        r"left out of the folder of images, no images by their suffix: 1, such as cat/notes\.txt",
        r"the folder is not split: images:PATH uses 15 % of each class for the test.*",
        r"images rotated upright, .*: 1 of 98, such as dog/turned\.jpg",
        r"images with transparent pixels, placed on white: 2 of 98, such as cat/palette\.png",
        r"images with several frames, .*: 1 of 98, such as cat/animated\.webp",
        r"equal images in the same class and part: 3, such as cat/04\.png \(training\) = cat/copy\.png \(training\),.*",
    ],
)
def test_what_is_done_is_noted(line, seen):
    assert [note for note in seen.all_notes() if re.fullmatch(line, note)], seen.all_notes()
    assert len(seen.all_notes()) == 8


def test_every_image_that_is_changed_or_looks_wrong_is_named(seen):
    odd = {kind.split(",")[0]: sorted(names) for kind, names in seen.odd.items()}
    assert odd == {
        "images rotated upright": ["dog/turned.jpg"],
        "images with transparent pixels": ["cat/palette.png", "cat/unseen.png"],
        "images with several frames": ["cat/animated.webp"],
        ONE_COLOR: ["cat/black.png", "cat/unseen.png", "dog/red.png"],
        COPIES: [
            "cat/copy.png = cat/04.png",
            "cat/new\nline\u202e.png = cat/05.png",
            "cat/\udcff\udcfe.png = cat/06.png",
            "dog/copy.png = cat/03.png",
        ],
        UNREADABLE: [
            "cat/deep.png (16 bits per channel, not 8)",
            "cat/sixteen.png (16 bits per channel, not 8)",
            "dog/empty.png (empty file)",
            "dog/short.png (image file is truncated)",
            "dog/text.png (not a PNG, JPEG, WebP or BMP image)",
        ],
    }


def test_sizes_and_formats_are_those_of_the_files(seen):
    assert seen.sizes == {(40, 60): 96, (480, 640): 1, (60, 40): 1}
    assert seen.kinds["JPEG CMYK"] == seen.kinds["PNG L"] == seen.kinds["PNG P"] == seen.kinds["PNG RGBA"] == 1
    assert seen.kinds["JPEG RGB"] == 11 and seen.kinds["WEBP RGB"] == 1
    assert sum(seen.kinds.values()) == 98 and seen.counts.sum() == len(seen.items) == 103


def counts_of(dataset):
    """Return images of (class, part) as training has them."""
    own = len(dataset.train) - dataset.validation_samples
    labels = dataset.train.labels[:own], dataset.train.labels[own:], dataset.test.labels
    return np.stack([np.bincount(part, minlength=len(dataset.class_names)) for part in labels], axis=1).tolist()


@pytest.mark.parametrize("given", ["pets", "train val test", "train val", "train test"])
def test_the_counts_are_those_of_training(given, tmp_path, cache):
    root = tmp_path / "pets"
    if given == "pets":
        pets(tmp_path)
    for number, part in enumerate(given.split() if given != "pets" else ()):
        for label, name in enumerate(("cat", "dog")):
            for image in range(3 - number + label):
                write_noise(root / f"{part}/{name}/{image}.png", number=100 * number + 10 * label + image)
    dataset = load_dataset(f"images:{root}")
    findings = look_at(root)
    assert findings.counts.tolist() == counts_of(dataset)
    assert not findings.odd.get(COPIES), "a test of the validation images is no copy"
    assert {*dataset.notes} - {*findings.all_notes()} <= {note for note in dataset.notes if "nothing can" in note}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (folders, "one-class"),
        (folders, "no-files"),
        (folders, "one-image"),
        (misfits, "mixed"),
        (misfits, "sizes"),
        (odd_files, "other"),
        (parts, "differs"),
    ],
)
def test_what_training_refuses_is_flagged_in_its_words(given, name, tmp_path, cache):
    given(tmp_path)
    with pytest.raises(UserError) as refused:
        load_dataset(f"images:{tmp_path}/{name}")
    line = f"training refuses this folder: {refused.value}"
    flags = look_at(tmp_path / name).flags()
    assert flags[0] in (line, line.replace(f"{tmp_path}/{name}/", "")), "names in the folder are shorter"


def test_two_classes_of_enough_images_are_not_flagged(tmp_path, cache):
    for number in range(134):
        write_noise(tmp_path / f"good/{'ab'[number % 2]}/{number}.png", number=number)
    findings = look_at(tmp_path / "good")
    assert findings.flags() == [] and len(findings.all_notes()) == 1
    assert findings.counts.tolist() == counts_of(load_dataset(f"images:{tmp_path}/good")) == [[57, 0, 10]] * 2
    (tmp_path / "good/a/0.png").unlink()
    (tmp_path / "good/a/2.png").unlink()
    (tmp_path / "good/a/4.png").unlink()
    (tmp_path / "good/a/6.png").unlink()
    assert look_at(tmp_path / "good").flags() == ["classes with fewer than 10 test images: 1, such as a"]


def test_copies_in_training_and_test_are_flagged_as_the_folder_is_split(tmp_path, cache):
    root = tmp_path / "pets"
    for number in range(100):
        write_noise(root / f"{'ab'[number % 2]}/{number:02d}.png", number=number)
    tested = {image.tobytes() for image in load_dataset(f"images:{root}").test.images}
    files = sorted((root / "a").iterdir())
    of_test, other, *training = sorted(files, key=lambda file: np.asarray(Image.open(file)).tobytes() not in tested)
    copy(other, of_test)
    flagged = [flag for flag in look_at(root).flags() if "equal" in flag]
    assert flagged == [], "both are test images"
    copy(of_test, training[-1])
    (flag,) = [flag for flag in look_at(root).flags() if "equal" in flag]
    assert flag.startswith("equal images in several parts: 1, such as")
    assert f"a/{training[-1].name} (training)" in flag and f"a/{of_test.name} (test)" in flag


def test_with_a_size_and_in_gray_it_looks_at_what_training_reads_then(tmp_path):
    for number, name in enumerate(("a/1", "b/1", "b/2")):
        write_noise(tmp_path / f"made/{name}.png", number=number)
    Image.open(tmp_path / "made/a/1.png").convert("L").save(tmp_path / "made/a/gray.png")
    write_noise(tmp_path / "made/a/large.png", number=9, size=(50, 50))
    plain, other = look_at(tmp_path / "made"), look_at(tmp_path / "made", image_size=(20, 60), gray=True)
    assert len(plain.problems) == 3 and len(other.problems) == 1, "too small to be prepared"
    assert "training images: 3, fewer than one batch of 64 (--batch-size)" in plain.flags()
    assert "images resized, without keeping proportions: 5 of 5" in other.all_notes()
    assert {shown.picture.size for label in (0, 1) for shown in other.sheets[label]} == {(128, 43)}
    (pair,) = other.odd.pop(COPIES)
    assert {*pair.split(" = ")} == {"a/1.png", "a/gray.png"} and not other.odd and not plain.odd


@pytest.mark.parametrize("pixels", ["uint8", "float16"])
def test_a_prepared_file_is_looked_at_as_it_is(pixels, tmp_path):
    for part, count in (("train", 70), ("val", 2), ("test", 11)):
        for number in range(2 * count):
            write_noise(tmp_path / f"pets/{part}/{'ab'[number % 2]}/{number:03d}.png", number=len(part) * 1000 + number)
    settings = Settings(image_shape=(4, 6, 3), pixels=pixels, shares=None, seed=1, skip_broken=False)
    prepare(tmp_path / "pets", tmp_path / "good", settings)
    good = look_at(tmp_path / "good")
    assert good.flags() == [] and good.summary().endswith(f"; 4x6 pixels (height x width), {pixels}")
    assert good.counts.tolist() == counts_of(load_dataset(f"prepared:{tmp_path}/good")) == [[70, 2, 11]] * 2
    copy(tmp_path / "pets/train/a/000.png", tmp_path / "pets/test/b/001.png")
    write_image(tmp_path / "pets/val/a/000.png", 200, size=(60, 40))
    prepare(tmp_path / "pets", tmp_path / "bad", settings)
    bad = look_at(tmp_path / "bad")
    flags = bad.flags()
    pair = r"image \d+ \(training\) = image \d+ \(test\)"
    assert re.fullmatch(f"equal images in several classes: 1, such as {pair}", flags[0])
    assert re.fullmatch(f"equal images in several parts: 1, such as {pair}", flags[1])
    assert re.fullmatch(r"images of one color: 1, such as image 14[0-3]", flags[2]) and len(flags) == 3
    assert (np.asarray(bad.sheets[ONE_COLOR][0].picture) == 200).all()


def test_an_image_that_training_finds_turned_too_late_is_not_readable(tmp_path):
    """EXIF data behind the pixels of a PNG: the header's size is not that of the image."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    for number, name in enumerate(("a/1", "a/2", "b/1", "b/2")):
        write_noise(tmp_path / f"made/{name}.png", number=number, exif=exif)
    late = tmp_path / "made/a/1.png"
    content = late.read_bytes()
    start = content.index(b"eXIf") - 4
    end, last = start + 12 + int.from_bytes(content[start : start + 4], "big"), content.rindex(b"IEND") - 4
    late.write_bytes(content[:start] + content[end:last] + content[start:end] + content[last:])
    assert look_at(tmp_path / "made").odd[UNREADABLE] == ["a/1.png (60 x 40 pixels, unlike its header)"]
    assert UNREADABLE not in look_at(tmp_path / "made", image_size=(40, 60)).odd


# The page and the command


@pytest.fixture(scope="module")
def page(zoo):
    assert main(["images", "look", str(zoo), "--output", str(zoo.parent / "zoo.html")]) == 0
    return zoo.parent / "zoo.html"


def test_the_page_is_whole_by_itself_and_shows_what_was_found(page, seen):
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text and "://" not in text and EVIL not in text and html.escape(EVIL) in text
    shown = html.unescape(text)
    for line in (*seen.flags(), *seen.all_notes()):
        assert f"<li>{line}</li>" in shown
    pictures = dict(re.findall(r'<img src="data:image/webp;base64,([^"]+)"[^>]* alt="([^"]+)">', text))
    pictures = {html.unescape(name): Image.open(io.BytesIO(base64.b64decode(file))) for file, name in pictures.items()}
    assert pictures["dog/turned.jpg"].size == (85, 128)
    assert np.asarray(pictures["cat/unseen.png"]).min() > 250 and np.asarray(pictures["cat/black.png"]).max() < 5
    assert r"cat/new\nline\u202e.png = cat/05.png" in pictures
    assert len([name for name in pictures if name.startswith(EVIL)]) == 5


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_a_phone_and_a_screen(width, page, tmp_path):
    with started_browser(tmp_path) as browser:
        browser.open(page.as_uri(), width=width)
        browser.value("(() => { for (const one of document.querySelectorAll('details')) one.open = true })()")
        assert browser.errors == []
        assert [address for address in browser.requests if not address.startswith("data:")] == [page.as_uri()]
        assert browser.value("document.documentElement.scrollWidth") == width
        assert browser.value("Array.from(document.images).every(image => image.naturalWidth > 0 && image.alt)")
        assert browser.value("document.images.length") > 20


def test_the_command_prints_flags_first_and_overwrites_nothing(zoo, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["images", "look", str(zoo)]) == 0
    lines = capsys.readouterr().out.splitlines()
    kinds = [line.split(":")[0] for line in lines]
    assert kinds == ["flag"] * 11 + ["note"] * 8 + [str(zoo), lines[-2].split(":")[0], "page"]
    assert "103 images of 4 classes: 87 training, 16 test; 3 sizes, PNG RGB, " in lines[-3]
    assert lines[-1] == "page: look-zoo.html" and [file.name for file in tmp_path.iterdir()] == ["look-zoo.html"]
    assert main(["images", "look", str(zoo)]) == 2
    assert "already exists and is not overwritten" in capsys.readouterr().err
    assert main(["images", "look", str(zoo), "--force", "--gray", "--image-size", "8x8"]) == 0
    assert "different sizes" not in capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["look-zoo.html"]
