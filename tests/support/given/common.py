"""What command lines of `python -m common` in `tests/refusals/common.toml` need in the current folder."""

from PIL import Image


def image(path, value=1):
    """Write an image of one value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (6, 4), value).save(path)


def pets(folder):
    """Write a folder of two classes."""
    for number in range(40):
        image(folder / f"pets/cat/{number:02d}.png", number)
        image(folder / f"pets/dog/{number:02d}.png", 100 + number)


def broken(folder):
    """Write files that are empty and no images into it."""
    (folder / "pets/cat/empty.png").touch()
    (folder / "pets/dog/text.jpeg").write_text("no image")


def small_class(folder):
    """Add a class of which no image remains for validation."""
    for number in range(20):
        image(folder / f"pets/bird/{number}.png")


def outputs(folder):
    """Write files that nothing may overwrite."""
    for name in ("made", "first-before.png", "second-after.png", "third-skipped.txt"):
        (folder / name).write_text("mine")


def folders(folder):
    """Write folders that are no data sets."""
    for name in ("empty", "one-class", "no-files", "one-image"):
        (folder / name).mkdir()
    image(folder / "one-class/a/1.png")
    image(folder / "no-files/a/1.png")
    (folder / "no-files/b").mkdir()
    image(folder / "one-image/a/1.png")
    image(folder / "one-image/b/1.png")
    for number in range(2):
        image(folder / f"two-classes/a/{number}.png")
        image(folder / f"two-classes/b/{number}.png")
