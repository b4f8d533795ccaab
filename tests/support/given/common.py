"""What command lines of `python -m common` in `tests/refusals/common.toml` need in the current folder."""

from made_images import write_image


def pets(folder):
    """Write a folder of two classes."""
    for number in range(40):
        write_image(folder / f"pets/cat/{number:02d}.png", number)
        write_image(folder / f"pets/dog/{number:02d}.png", 100 + number)


def broken(folder):
    """Write files that are empty and no images into it."""
    (folder / "pets/cat/empty.png").touch()
    (folder / "pets/dog/text.jpeg").write_text("no image")


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
