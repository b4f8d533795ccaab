"""What command lines of `python -m common` in `tests/refusals/common.toml` need in the current folder."""

import os
from unittest import mock

import numpy as np
from made_images import write_deep_color, write_image
from PIL import Image

from common.data.images.prepare import Settings, prepare
from common.data.images.rows import parse_shares


def pets(folder):
    for number in range(40):
        write_image(folder / f"pets/cat/{number:02d}.png", number)
        write_image(folder / f"pets/dog/{number:02d}.png", 100 + number)


def prepared(folder):
    """Prepare them, as the file `made`."""
    settings = Settings(
        image_shape=(4, 6, 1), pixels="uint8", shares=parse_shares("85/2/13"), seed=1, skip_broken=False
    )
    prepare(folder / "pets", folder / "made", settings)


def newer(folder):
    """Prepare them as a newer version of this program would."""
    with mock.patch("common.data.images.prepare.VERSION", 2):
        prepared(folder)


def misfits(folder):
    """Write folders of two classes with images that do not fit together."""
    for name in ("mixed", "sizes", "bad", "deep-gray", "sixteen"):
        for image in ("a/1", "b/1", "b/2"):
            write_image(folder / f"{name}/{image}.png")
    write_image(folder / "mixed/b/3.png", mode="L")
    write_image(folder / "sizes/b/3.png", size=(31, 30))
    for number in range(5):
        (folder / f"bad/a/bad-{number}.png").write_bytes(b"no image")
    write_deep_color(folder / "deep-gray/a/1.png", channels=2)
    Image.new("I;16", (6, 4)).save(folder / "sixteen/a/1.png")


def broken(folder):
    """Add files that are empty, of another kind, truncated, and of 16 bits; return their names."""
    (folder / "pets/cat/empty.png").touch()
    (folder / "pets/dog/text.jpeg").write_text("no image")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)
    short = folder / "pets/dog/short.png"
    Image.fromarray(pixels).save(short)
    short.write_bytes(short.read_bytes()[:-500])
    Image.fromarray(pixels.astype(np.uint16)).save(folder / "pets/cat/deep.png")
    return ["cat/deep.png", "cat/empty.png", "dog/short.png", "dog/text.jpeg"]


def odd_files(folder):
    """Add folders of images that hold what is not read."""
    for name in ("pipe", "deep", "other", "loop"):
        write_image(folder / f"{name}/a/1.png")
        write_image(folder / f"{name}/b/1.png")
        write_image(folder / f"{name}/b/2.png")
    os.mkfifo(folder / "pipe/a/0.png")
    write_deep_color(folder / "deep/a/0.png")
    write_deep_color(folder / "deep/b/0.png", channels=4)
    (folder / "other/a/0.tif").touch()
    (folder / "loop/a/again").symlink_to("..")


def parts(folder):
    """Write folders with parts, of which one alone is no data set."""
    for name in (
        "split/train",
        "split/val",
        "alone/train",
        "without/val",
        "without/test",
        "two/train",
        "two/val",
        "two/valid",
    ):
        write_image(folder / name / "a/1.png")
        write_image(folder / name / "b/1.png")
    write_image(folder / "differs/train/a/1.png")
    write_image(folder / "differs/train/b/1.png")
    write_image(folder / "differs/val/a/1.png")
    write_image(folder / "differs/val/c/1.png")


def small_class(folder):
    """Add a class of which no image remains for validation."""
    for number in range(20):
        write_image(folder / f"pets/bird/{number}.png")


def outputs(folder):
    """Write files that nothing may overwrite."""
    for name in ("made", "first-before.png", "second-after.png", "third-skipped.txt"):
        (folder / name).write_text("mine")


def folders(folder):
    """Write folders that are no data sets."""
    for name in ("empty", "one-class", "no-files", "one-image"):
        (folder / name).mkdir()
    write_image(folder / "one-class/a/1.png")
    write_image(folder / "no-files/a/1.png")
    (folder / "no-files/b").mkdir()
    write_image(folder / "one-image/a/1.png")
    write_image(folder / "one-image/b/1.png")
    for number in range(2):
        write_image(folder / f"two-classes/a/{number}.png")
        write_image(folder / f"two-classes/b/{number}.png")
