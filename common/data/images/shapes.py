"""Gray images of nine shapes, drawn from a seed: a substitute for photographs that cannot be distributed.

    python -m common images draw FOLDER --images 9000 --image-size 227x227 --seed 1

Each image has one dark shape of random position, size, rotation and stretch among lines and blots, with blur and noise.
It depends only on the seed and the number of the image.
"""

import functools
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from common.data.progress import announce, images_bar
from common.errors import UserError, expanded
from common.utils.atomic import atomic_folder
from common.utils.workers import in_order

LEAST_SIDE = 16  # pixels; shapes of smaller images cannot be distinguished
CURVE_POINTS = 48
RADIUS = (0.22, 0.38)  # of a shape / shorter side
STRETCH = (0.75, 1.0)  # shorter / longer axis of a shape
CONTRAST = (30, 90)  # background - shape, in gray levels
TURN = 0.6  # radians, maximum rotation to either side
NOISE = (8, 30)  # standard deviation of a pixel, in gray levels
LINES, BLOTS = 3, 3  # maximum numbers in an image
COARSE, UNEVENNESS = 6, 12  # background: cells along each side, and their standard deviation in gray levels
FAST_COMPRESSION = 1  # of PNG: more effort hardly shrinks noise


def _around(radii: np.ndarray) -> np.ndarray:
    """Return corners (points, 2) at these distances from the center, at equal angles."""
    return radii[:, None] * _on_circle(np.arange(len(radii)) * 2 * np.pi / len(radii))


def _on_circle(angles: np.ndarray | float) -> np.ndarray:
    """Return the points (..., 2) at these angles on the unit circle."""
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _polygon(corners: int) -> np.ndarray:
    return _around(np.ones(corners))


def _crescent() -> np.ndarray:
    """Return the outer arc followed by the inner one, which has another center."""
    outer = np.linspace(0.2 * np.pi, 1.8 * np.pi, CURVE_POINTS)
    horn = _on_circle(outer[0])
    middle = np.array([0.45, 0.0])
    reach, turn = np.hypot(*(horn - middle)), np.arctan2(*(horn - middle)[::-1])
    inner = np.linspace(2 * np.pi - turn, turn, CURVE_POINTS)
    return np.concatenate([_on_circle(outer), middle + reach * _on_circle(inner)])


def _cross() -> np.ndarray:
    """Return one arm's corners, turned four times by a right angle."""
    arm = np.array([[1, 0.3], [0.3, 0.3], [0.3, 1]])
    return np.concatenate([arm @ np.linalg.matrix_power([[0, 1], [-1, 0]], turns) for turns in range(4)])


# Class -> outline (points, 2) within the unit circle.
SHAPES: dict[str, np.ndarray] = {
    "arrow": np.array([[1, 0], [0.1, 0.8], [0.1, 0.3], [-0.9, 0.3], [-0.9, -0.3], [0.1, -0.3], [0.1, -0.8]]),
    "circle": _polygon(CURVE_POINTS),
    "crescent": _crescent(),
    "cross": _cross(),
    "hexagon": _polygon(6),
    "pentagon": _polygon(5),
    "square": _polygon(4),
    "star": _around(np.tile([1.0, 0.45], 5)),
    "triangle": _polygon(3),
}
CLASS_NAMES = tuple(SHAPES)


def class_of(index: int) -> str:
    """Return the class of an image by its number: class sizes differ by at most one image."""
    return CLASS_NAMES[index % len(CLASS_NAMES)]


def draw_shape(index: int, *, seed: int, image_size: tuple[int, int]) -> Image.Image:
    """Return an 8-bit gray image of `class_of(index)`, the same for the same seed, index and (height, width)."""
    random = np.random.default_rng(np.random.SeedSequence([seed, index]))
    height, width = image_size
    size = width, height
    background = random.uniform(110, 200)
    shade = background - random.uniform(*CONTRAST)
    # Uneven light: a few random values, interpolated over the image.
    cells = np.clip(background + random.normal(0, UNEVENNESS, (COARSE, COARSE)), 0, 255).astype(np.uint8)
    picture = Image.fromarray(cells).resize(size, Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(picture)
    for _ in range(random.integers(LINES + 1)):
        ends = random.uniform(0, 1, (2, 2)) * size
        pen.line(ends.ravel().tolist(), fill=int(random.uniform(40, 215)), width=int(random.integers(1, 4)))
    for _ in range(random.integers(BLOTS + 1)):
        corner, extent = random.uniform(0, 1, 2) * size, random.uniform(0.03, 0.12, 2) * min(size)
        pen.ellipse([*corner, *(corner + extent)], fill=int(random.uniform(40, 215)))
    radius = random.uniform(*RADIUS) * min(size)
    middle = random.uniform(radius, np.array(size) - radius)
    outline = SHAPES[class_of(index)] * [1, random.uniform(*STRETCH)] @ _rotation(random.uniform(-TURN, TURN))
    pen.polygon([tuple(point) for point in middle + radius * outline], fill=int(np.clip(shade, 0, 255)))
    picture = picture.filter(ImageFilter.BoxBlur(min(size) / 200))
    noise = random.standard_normal((height, width), np.float32) * np.float32(random.uniform(*NOISE))
    return Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8))


def _rotation(angle: float) -> np.ndarray:
    cosine, sine = _on_circle(angle)
    return np.array([[cosine, -sine], [sine, cosine]])


def draw_folder(folder: Path, *, images: int, image_size: tuple[int, int], seed: int) -> None:
    """Write PNG files into nine class folders; the folder appears when all are written.

    Args:
        folder: must not exist.
        image_size: (height, width) in pixels.
        seed: any integer >= 0; determines the files with `images` and `image_size`.

    Raises:
        UserError: the folder exists, or there are too few images or pixels.
        OSError: it cannot be written.
    """
    folder = expanded(folder).absolute()
    if images < len(CLASS_NAMES):
        raise UserError(
            f"each of the {len(CLASS_NAMES)} classes needs an image. Received: --images {images}. "
            f"Give {len(CLASS_NAMES)} or more"
        )
    if min(image_size) < LEAST_SIDE:
        raise UserError(
            f"the images are too small to show a shape. Received: --image-size {image_size[0]}x{image_size[1]}. "
            f"Give {LEAST_SIDE} pixels or more for each side"
        )
    if folder.exists():
        raise UserError(f"the folder already exists and is not overwritten. Received: {folder}. Name a new one")
    with atomic_folder(folder) as unfinished:
        for name in CLASS_NAMES:
            (unfinished / name).mkdir()
        digits = len(str(images - 1))
        draw = functools.partial(_draw_file, folder=unfinished, digits=digits, seed=seed, image_size=image_size)
        drawn = in_order(draw, range(images), processes=True)
        announce(f"drawing {images:,} images into {folder}")
        with images_bar(images, doing="drawing") as bar:
            for _ in drawn:
                bar.update()


def _draw_file(index: int, *, folder: Path, digits: int, seed: int, image_size: tuple[int, int]) -> None:
    path = folder / class_of(index) / f"{index:0{digits}d}.png"
    draw_shape(index, seed=seed, image_size=image_size).save(path, compress_level=FAST_COMPRESSION)
