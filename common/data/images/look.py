"""Look at a folder of images, or at a prepared file, before it is trained on.

A folder is listed, split and read by the functions behind `--dataset images:PATH`. What these refuse does not end the
look, but is a problem in it.
"""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from common.data.dataset import Split
from common.data.images.findings import Findings, Item, View, line_about
from common.data.images.listing import PARTS, FolderListing, list_folder
from common.data.images.prepare import DEFAULT_SHARES
from common.data.images.prepared_file import load_prepared, read_description, whole_pixels
from common.data.images.reading import Header, ReadImage, common_shape, read_header, read_image
from common.data.images.rows import TEST_SHARE, parse_shares, rows_in_order
from common.data.progress import announce, images_bar
from common.errors import UserError, expanded
from common.utils.workers import in_order


def look_at(path: Path, *, image_size: tuple[int, int] | None = None, gray: bool = False) -> Findings:
    """Look at a folder as training would read it with these options, or at a prepared file, which has its own.

    Raises:
        UserError: there are no images in class folders, or no telling which are for training; the file is damaged.
        OSError: something cannot be read.
    """
    path = expanded(path).absolute()
    if path.is_dir() or not path.exists():
        return _look_at_folder(path, image_size, gray)
    if image_size is not None or gray:
        raise UserError(f"--image-size and --gray are for folders of images. Received: the file {path}. Leave them out")
    return _look_at_file(path)


def _look_at_folder(folder: Path, image_size: tuple[int, int] | None, gray: bool) -> Findings:
    problems: list[str] = []
    listed = list_folder(folder, refuse=problems.append)
    rows = rows_in_order(folder, listed, refuse=problems.append)
    if not len(rows.labels):
        raise UserError(problems[0])
    parts = np.repeat(np.arange(len(PARTS)), rows.counts)
    items = [Item(rows.file(row), int(rows.labels[row]), int(parts[row])) for row in rows.own()]
    findings = Findings(folder, rows.class_names, _counts(rows.labels, parts, len(rows.class_names)), items)
    view = functools.partial(_view_of_file, image_size=image_size, gray=gray)
    _add_all(findings, in_order(view, (folder / item.name for item in items)))
    if findings.headers:
        common_shape(findings.headers, image_size, gray, refuse=problems.append)
    findings.problems = list(dict.fromkeys(f"training refuses this folder: {problem}" for problem in problems))
    findings.notes = [*listed.notes]
    if not listed.has_parts:
        test = f"images:PATH uses {100 * TEST_SHARE:.0f} % of each class for the test, always the same images"
        findings.notes.append(f"the folder is not split: {test}; `images prepare` has --split and --seed")
        findings.problems += _too_small(listed)
    resized = sum(count for size, count in findings.sizes.items() if image_size not in (None, size))
    if resized:
        findings.notes.append(f"images resized, without keeping proportions: {resized:,} of {len(findings.headers):,}")
    return findings


def _counts(labels: np.ndarray, parts: np.ndarray, classes: int) -> np.ndarray:
    """Return (classes, parts) numbers of images."""
    return np.stack([np.bincount(labels[parts == part], minlength=classes) for part in range(len(PARTS))], axis=1)


def _too_small(listed: FolderListing) -> list[str]:
    """Return a line about the classes that `images prepare` cannot split as it does by default."""
    shares, small = parse_shares(DEFAULT_SHARES), []
    for name, (files,) in listed.classes.items():
        try:
            shares.of_class(name, len(files))
        except UserError:
            small.append(f"{name} ({len(files):,})")
    return line_about(f"classes too small for `images prepare --split {DEFAULT_SHARES}`, the default", small)


def _view_of_file(file: Path, *, image_size: tuple[int, int] | None, gray: bool) -> View | str:
    """Return an image as a network gets it, or the reason why it is not readable."""
    header = read_header(file)
    if isinstance(header, str):
        return header
    height, width = image_size or (header.height, header.width)
    shape = height, width, 1 if gray else header.channels
    image = read_image(file, shape=shape, resize=image_size is not None)
    return image if isinstance(image, str) else View(header, image, _digest(image.pixels))


def _look_at_file(file: Path) -> Findings:
    data, (description, _) = load_prepared(file, name=str(file)), read_description(file)
    labels = np.concatenate([data.train.labels, data.test.labels])
    counts = description.training_samples, description.validation_samples, description.test_samples
    parts = np.repeat(np.arange(len(PARTS)), counts)
    header = Header(*description.image_shape, description.pixels)
    items = [Item(f"image {row}", int(labels[row]), int(parts[row])) for row in range(len(labels))]
    classes = description.class_names
    findings = Findings(file, classes, _counts(labels, parts, len(classes)), items)
    findings.notes = [
        f"prepared from {description.source}, split {description.split}, seed {description.seed}; broken files "
        f"left out: {description.skipped_files:,}. What was turned or placed on white is not recorded"
    ]

    def view(place: tuple[Split, int]) -> View:
        split, row = place
        pixels = whole_pixels(split.images[row])
        return View(header, ReadImage(pixels, ()), _digest(pixels))

    rows = ((split, row) for split in (data.train, data.test) for row in range(len(split)))
    _add_all(findings, in_order(view, rows))
    return findings


def _digest(pixels: np.ndarray) -> bytes:
    return hashlib.blake2b(repr(pixels.shape).encode() + pixels.tobytes(), digest_size=16).digest()


def _add_all(findings: Findings, views: Iterable[View | str]) -> None:
    announce(f"looking at {len(findings.items):,} images of {findings.path}")
    with images_bar(len(findings.items), doing="looking") as bar:
        for item, view in zip(findings.items, views, strict=True):
            findings.add(item, view)
            bar.update()
