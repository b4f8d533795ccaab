"""Image files of one value, for folders of images, and PNG files of 16 bits per channel."""

import struct
import zlib

from PIL import Image


def write_image(path, value=1, *, size=(6, 4), mode="RGB"):
    """Write an image of (width, height) pixels that all have the value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).convert(mode).save(path)


def write_deep_color(path, *, channels=3, size=(6, 4)):
    """Write a PNG of 16 bits per channel, which Pillow reads but does not write: 2 to 4 channels."""
    width, height = size
    color_type = {2: 4, 3: 2, 4: 6}[channels]
    rows = (b"\0" + b"\x12\x34" * channels * width) * height
    parts = (
        b"IHDR" + struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0),
        b"IDAT" + zlib.compress(rows),
        b"IEND",
    )
    chunks = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
