"""One image file as pixels: upright, opaque, 8 bits per channel, one frame. What was changed for that is counted."""

import errno
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps

from common.errors import UserError
from common.utils.printable import printable
from common.utils.whole_files import MOST_BYTES, require_file

SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # Pillow's names
KINDS = "PNG, JPEG, WebP or BMP"
MOST_PIXELS = 178_956_970  # where Pillow refuses by itself
Image.MAX_IMAGE_PIXELS = None  # but first it prints warnings; here is one line
SHOWN = 3  # examples in a message

# Pillow's name of a pixel format with 8 bits per channel -> number of channels here.
CHANNELS = {"1": 1, "L": 1, "LA": 1, "P": 3, "RGB": 3, "RGBA": 3, "CMYK": 3, "YCbCr": 3}

# What is done to an image beside decoding, and what is printed about it.
CHANGES = {
    "turned": "images rotated upright, following their EXIF data",
    "on white": "images with transparent pixels, placed on white",
    "first frame": "images with several frames, of which only the first is used",
}

Refuse = Callable[[str], object]  # what is done about images that cannot be trained on

# Values of the orientation of EXIF.
_TURNED = range(2, 9)
_SIDEWAYS = (5, 6, 7, 8)  # height and width change places


def raise_error(message: str) -> None:
    """Refuse images."""
    raise UserError(message)


class Header(NamedTuple):
    """What an image file says of its image: sides as it is seen, channels here, format and pixel format by Pillow."""

    height: int
    width: int
    channels: int
    kind: str


class ReadImage(NamedTuple):
    """The pixels of an image file, (height, width, channels) uint8, and what was changed: keys of CHANGES."""

    pixels: np.ndarray
    changes: tuple[str, ...]


def read_image(path: Path, *, shape: tuple[int, int, int], resize: bool = True) -> ReadImage | str:
    """Return an image file converted to (height, width, 1 or 3 channels), or the reason why it is not readable.

    Args:
        resize: bilinear, without keeping proportions; otherwise an image of another size is not readable.
    """
    height, width, channels = shape
    try:
        picture, changes = read_picture(path)
        picture = picture.convert("L" if channels == 1 else "RGB")
        if picture.size != (width, height):
            if not resize:
                raise ValueError(f"{picture.height} x {picture.width} pixels, unlike its header")
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    except Exception as error:  # a damaged image can raise almost any error
        return _reason(path, error)
    return ReadImage(np.asarray(picture).reshape(height, width, channels), changes)


def read_picture(path: Path) -> tuple[Image.Image, tuple[str, ...]]:
    """Return an image file, decoded, upright and opaque, and what was changed; a damaged one can raise any error."""
    changes = []
    with _open(path) as image:
        if getattr(image, "n_frames", 1) > 1:
            changes.append("first frame")
        image.load()
        picture: Image.Image = image
        if _orientation(image) in _TURNED:
            changes.append("turned")
            picture = ImageOps.exif_transpose(image)
        if image.has_transparency_data:
            layers = picture.convert("RGBA")
            if layers.getchannel("A").getextrema()[0] != 255:
                changes.append("on white")
                picture = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
        return picture, tuple(changes)


def read_header(path: Path) -> Header | str:
    """Return the header of an image file, or the reason why it is not readable."""
    try:
        with _open(path) as image:
            # EXIF data may follow the pixels of a PNG. Looking for it there would decode them.
            known = image.format != "PNG" or "exif" in image.info
            sideways = known and _orientation(image) in _SIDEWAYS
            sides = (image.width, image.height) if sideways else (image.height, image.width)
            return Header(*sides, CHANNELS[image.mode], f"{image.format} {image.mode}")
    except Exception as error:
        return _reason(path, error)


def common_shape(
    headers: Iterable[tuple[str, Header]],
    image_size: tuple[int, int] | None,
    gray: bool,
    *,
    refuse: Refuse = raise_error,
) -> tuple[int, int, int]:
    """Return the common (height, width, channels) of at least one image, after conversion.

    Args:
        headers: name and header of each image.
        refuse: called if sizes or channels differ; if it raises nothing, the first ones are returned.
    """
    sizes: dict[tuple[int, int], list[str]] = defaultdict(list)
    channels: dict[int, list[str]] = defaultdict(list)
    for name, header in headers:
        sizes[header.height, header.width].append(name)
        channels[header.channels].append(name)
    if image_size is None and len(sizes) > 1:
        found = [f"{height} x {width}: {len(names)}, e.g. {names[0]}" for (height, width), names in sizes.items()]
        refuse(
            f"images of different sizes (height x width). Received: {some(found, joint='; ')}. "
            "Give --image-size HEIGHTxWIDTH to resize them"
        )
    if not gray and len(channels) > 1:
        found = [f"{count} channel(s): {len(names)}, e.g. {names[0]}" for count, names in channels.items()]
        refuse(
            f"some images are gray and some in color. Received: {some(found, joint='; ')}. "
            "Give --gray to convert all of them"
        )
    return *(image_size or next(iter(sizes))), 1 if gray else next(iter(channels))


def _open(path: Path) -> Image.Image:
    """Open an image file and read its header; a damaged one can raise almost any error."""
    if require_file(path).st_size > MOST_BYTES:  # in a JPEG Pillow looks for its parts byte by byte
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    image = Image.open(path, formats=FORMATS)
    try:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels, more than {MOST_PIXELS:,}")
        # Pillow cuts the 16 bits of color to 8; its name for them is in the raw mode only.
        if image.format == "PNG" and str(image.tile[0][3]).endswith(";16B"):
            raise ValueError("16 bits per channel, not 8")
        if image.mode not in CHANNELS:
            raise ValueError(f"pixel format {image.mode}, not 8 bits per channel")
    except Exception:
        image.close()
        raise
    return image


def _orientation(image: Image.Image) -> int:
    """Return the orientation by EXIF; 1, upright, if there is none that can be read."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF data, which most programs ignore
        return 1


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if path.stat().st_size == 0:
        return "empty file"
    return f"not a {KINDS} image" if isinstance(error, Image.UnidentifiedImageError) else str(error) or "unreadable"


class Tally:
    """Counts what was done to images, and finds groups of images of which all pixels are equal."""

    def __init__(self) -> None:
        self.images = 0
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.extremes: dict[str, tuple[int, int]] = {}  # of each group: its lowest and its highest pixel

    def add(self, name: str, image: ReadImage, *, groups: Sequence[str] = (), again: bool = False) -> None:
        """Add an image by its name.

        Args:
            groups: what it is a part of, such as "class cat" and "the test images".
            again: it was added before, as a part of other groups.
        """
        if not again:
            self.images += 1
            self.counts.update(image.changes)
            for change in image.changes:
                self.examples.setdefault(change, name)
        for group in groups:
            low, high = self.extremes.get(group, (255, 0))
            self.extremes[group] = min(low, int(image.pixels.min())), max(high, int(image.pixels.max()))

    def notes(self) -> list[str]:
        """Return a line for each change, and one for the groups."""
        lines = [
            f"{text}: {self.counts[change]:,} of {self.images:,}, such as {printable(self.examples[change])}"
            for change, text in CHANGES.items()
            if self.counts[change]
        ]
        equal = [f"{printable(group)} ({low})" for group, (low, high) in self.extremes.items() if low == high]
        if equal:
            lines.append(f"nothing can be learned where all pixels are equal: {some(equal)}")
        return lines


def some(items: Sequence[str], *, joint: str = ", ") -> str:
    """Return the first few items and the number of the others, for a message."""
    more = [f"and {len(items) - SHOWN:,} more"] if len(items) > SHOWN else []
    return joint.join([*items[:SHOWN], *more])
