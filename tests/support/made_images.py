"""Image files of one value, for folders of images."""

from PIL import Image


def write_image(path, value=1, *, size=(6, 4), mode="RGB"):
    """Write an image of (width, height) pixels that all have the value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).convert(mode).save(path)
