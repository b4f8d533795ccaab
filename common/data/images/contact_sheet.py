"""Contact sheets: some images of each class on one page, one row per class."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SHEET_CLASSES, SHEET_IMAGES = 20, 8  # at most: classes, and images of each
CELL = 128  # pixels of the longer side of a picture
GAP = 6
FONT_SIZE = 15
PAPER, INK = (255, 255, 255), (30, 30, 30)


def contact_sheet(title: str, rows: Sequence[tuple[str, Sequence[Image.Image]]]) -> Image.Image:
    """Return a page with a title, and in each row a name and its pictures in their proportions.

    Args:
        rows: name and pictures of any size; they are converted to RGB.
    """
    font = ImageFont.load_default(FONT_SIZE)
    fitted = [[thumbnail(picture) for picture in pictures] for _, pictures in rows]
    heights = [max(picture.height for picture in pictures) for pictures in fitted]
    names_width = max(int(font.getlength(name)) for name, _ in rows) + 2 * GAP
    columns = max(len(pictures) for pictures in fitted)
    width = max(names_width + columns * (CELL + GAP), int(font.getlength(title)) + 2 * GAP)
    top = FONT_SIZE + 3 * GAP
    page = Image.new("RGB", (width, top + sum(heights) + len(rows) * GAP), PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((GAP, GAP), title, INK, font)
    for (name, _), pictures, height in zip(rows, fitted, heights, strict=True):
        pen.text((GAP, top + height // 2), name, INK, font, anchor="lm")
        for column, picture in enumerate(pictures):
            left = names_width + column * (CELL + GAP)
            page.paste(picture, (left + (CELL - picture.width) // 2, top + (height - picture.height) // 2))
        top += height + GAP
    return page


def picture_of(pixels: np.ndarray) -> Image.Image:
    """Return an image for (height, width, 1 or 3) uint8."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def thumbnail(picture: Image.Image) -> Image.Image:
    """Return a picture whose longer side is CELL pixels; pixels of an enlarged one stay squares."""
    scale = CELL / max(picture.size)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return picture.convert("RGB").resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST)
