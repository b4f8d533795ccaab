"""`python -m common images`: look at a folder of images, prepare it for training, or draw a synthetic one."""

import argparse
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np
from PIL import Image

from common.data.images.contact_sheet import SHEET_CLASSES, SHEET_IMAGES, contact_sheet, picture_of
from common.data.images.folder import plain_name
from common.data.images.look import look_at
from common.data.images.look_page import html_of
from common.data.images.prepare import DEFAULT_SHARES, Preparation, Settings, prepare
from common.data.images.prepared_file import PixelType, load_prepared, whole_pixels
from common.data.images.reading import KINDS, read_picture
from common.data.images.rows import parse_shares
from common.data.images.shapes import CLASS_NAMES, draw_folder
from common.distributed.console import counted, readable_seconds
from common.errors import UserError, expanded
from common.measurement.interference import peak_memory_bytes
from common.utils.atomic import write_atomically
from common.utils.command_line import Parser, check_new_file, height_and_width, image_size, path, whole_number
from common.utils.cores import usable_cores
from common.utils.printable import printable

SHOWN_FILES = 5


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the `images` command; each of its actions sets `run`, a function of the parsed options."""
    seed = partial(whole_number, least=0, most=2**63 - 1)
    parser = commands.add_parser("images", help="look at, prepare and draw images for training")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    looking = actions.add_parser(
        "look", help="show what is in a folder of images before training, and what looks wrong"
    )
    looking.add_argument(
        "path", type=path, metavar="PATH", help=f"one subfolder of {KINDS} files per class, or a prepared file"
    )
    _add_size(looking, default=None, help="resize, as --image-size of the trainers does")
    looking.add_argument("--gray", action="store_true", help="convert to one channel, as --gray of the trainers does")
    looking.add_argument("--output", type=path, metavar="FILE", help="page to write (default: look-NAME.html)")
    looking.add_argument("--force", action="store_true", help="replace an existing page")
    looking.set_defaults(run=look_at_images)

    preparing = actions.add_parser("prepare", help="write a folder of images into one file for training")
    preparing.add_argument("folder", type=path, metavar="FOLDER", help=f"one subfolder of {KINDS} files per class")
    preparing.add_argument("--output", type=path, required=True, metavar="FILE", help="the file to write")
    _add_size(preparing, required=True, help="in pixels, such as 148x197")
    preparing.add_argument("--gray", action="store_true", help="convert to one channel (default: three)")
    pixels = "uint8: unchanged pixels; float16: pixel / 255, twice the size (default: %(default)s)"
    preparing.add_argument("--dtype", choices=get_args(PixelType), default="uint8", help=pixels)
    split = "percent of each class for training, validation and test (default: as the folder is split, or "
    preparing.add_argument("--split", metavar="A/B/C", help=f"{split}{DEFAULT_SHARES})")
    preparing.add_argument("--seed", type=seed, default=1, help="seed of split and order (default: %(default)s)")
    preparing.add_argument("--skip-broken", action="store_true", help="leave out broken files and list them")
    preparing.set_defaults(run=prepare_images)

    drawing = actions.add_parser("draw", help="draw example images of nine shapes, for trials")
    drawing.add_argument("folder", type=path, metavar="FOLDER", help="new folder for the images")
    drawing.add_argument("--images", type=int, default=9000, help="number in all (default: %(default)s)")
    _add_size(drawing, default=(227, 227), help="in pixels (default: 227x227)")
    drawing.add_argument("--seed", type=seed, default=1, help="seed of the drawings (default: %(default)s)")
    drawing.set_defaults(run=draw_images)


def _add_size(parser: Parser, **options: Any) -> None:
    parser.add_argument("--image-size", type=image_size, metavar="HEIGHTxWIDTH", **options)
    parser.add_argument("--size", type=_former_size, help=argparse.SUPPRESS)


def _former_size(text: str) -> NoReturn:
    """Refuse the option that was once width x height."""
    width, height = height_and_width(text) or (197, 148)
    raise argparse.ArgumentTypeError(
        f"this option was replaced, and sizes are height x width. Received: {text}. Give --image-size {height}x{width}"
    )


def look_at_images(options: argparse.Namespace) -> None:
    """Look at a folder or a prepared file, write the page, and print flags, notes and a summary.

    Raises:
        UserError: nothing to look at, a damaged prepared file, or the page exists.
        OSError: something cannot be read or written.
    """
    folder = expanded(options.path).absolute()
    page = expanded(options.output or Path(f"look-{plain_name(folder)}.html"))
    check_new_file(page, replaced=options.force)
    start = _clock()
    findings = look_at(folder, image_size=options.image_size, gray=options.gray)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, html_of(findings))
    spent = _clock() - start
    flags = findings.flags()
    for kind, lines in (("flag", flags or ["none"]), ("note", findings.all_notes())):
        for line in lines:
            print(f"{kind}: {line}")
    print(printable(f"{options.path}: {findings.summary()}"))
    print(_speed("looked at", len(findings.items), spent))
    print(printable(f"page: {page}"))


def prepare_images(options: argparse.Namespace) -> None:
    """Prepare a folder, draw the contact sheets, print a summary and the time taken.

    Raises:
        UserError: an impossible setting, unusable images, or an output file exists.
        OSError: something cannot be read or written.
    """
    height, width = options.image_size
    settings = Settings(
        image_shape=(height, width, 1 if options.gray else 3),
        pixels=options.dtype,
        shares=None if options.split is None else parse_shares(options.split),
        seed=options.seed,
        skip_broken=options.skip_broken,
    )
    file = expanded(options.output)
    if not file.name:
        raise UserError(f"this is a folder, not a file. Received: --output {file}. Name a file in it")
    before, after, skipped = (file.with_name(file.stem + end) for end in ("-before.png", "-after.png", "-skipped.txt"))
    for other in (before, after, skipped):
        if other.exists():
            raise UserError(f"an output file already exists and is not overwritten. Received: {other}. Remove it")
    start = _clock()
    made = prepare(options.folder, file, settings)
    spent = _clock() - start
    if made.skipped:
        _list_skipped(made.skipped, skipped)
    for note in made.notes:
        print(f"note: {note}")
    _draw_sheets(made, file, before=before, after=after)
    description = made.description
    print(f"contact sheets: {before}, {after}")
    print(
        f"{file}: {description.training_samples:,} training, {description.validation_samples:,} validation and "
        f"{description.test_samples:,} test images of {len(description.class_names)} classes, "
        f"{height}x{width} pixels (height x width), {counted(description.image_shape[2], 'channel')}, "
        f"{description.pixels}, {file.stat().st_size / 1e6:,.1f} MB. Train with --dataset prepared:{file}"
    )
    print(f"{_speed('prepared', description.samples, spent)}, peak memory {peak_memory_bytes() / 1e6:,.0f} MB")


def draw_images(options: argparse.Namespace) -> None:
    """Draw a folder of shapes and print the time it took.

    Raises:
        UserError: an impossible setting, or the folder exists.
        OSError: it cannot be written.
    """
    start = _clock()
    draw_folder(options.folder, images=options.images, image_size=options.image_size, seed=options.seed)
    spent = _clock() - start
    print(f"{options.folder}: {options.images:,} images of {len(CLASS_NAMES)} classes: {', '.join(CLASS_NAMES)}")
    print(_speed("drew", options.images, spent))


def _list_skipped(skipped: Sequence[tuple[str, str]], file: Path) -> None:
    lines = [f"{printable(name)}: {reason}" for name, reason in skipped]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"left out {counted(len(lines), 'broken file')}, all listed in {file}:")
    for line in [*lines[:SHOWN_FILES], "..."][: len(lines)]:
        print(f"  {line}")


def _draw_sheets(made: Preparation, file: Path, *, before: Path, after: Path) -> None:
    """Draw the same images as in the folder and as in the prepared file."""
    description, rows = made.description, made.rows
    train = load_prepared(file, name=str(file)).train
    originals, prepared = [], []
    for label, name in enumerate(description.class_names[:SHEET_CLASSES]):
        chosen = np.flatnonzero(rows.labels[: description.training_samples] == label)[:SHEET_IMAGES]
        originals.append((name, [_original(rows.folder / rows.file(row)) for row in chosen]))
        prepared.append((name, [picture_of(whole_pixels(train.images[row])) for row in chosen]))
    width, height = prepared[0][1][0].size
    classes = len(description.class_names)
    shown = f"{classes} classes" if len(prepared) == classes else f"{len(prepared)} of {classes} classes"
    contact_sheet(f"{description.source}, {shown}: original images", originals).save(before)
    title = f"{description.source}, {shown}: {width}x{height}, {description.pixels}, as given to a network"
    contact_sheet(title, prepared).save(after)


def _original(path: Path) -> Image.Image:
    picture, _ = read_picture(path)
    return picture.convert("RGB")


def _clock() -> np.ndarray:
    """Return a time, and the processor time of this process and of its ended children: (2,) seconds."""
    return np.array([time.perf_counter(), sum(os.times()[:4])])


def _speed(done: str, images: int, spent: np.ndarray) -> str:
    """Return the number of images and the speed; cores used = processor time / elapsed time."""
    seconds, work_seconds = spent
    return (
        f"{done} {images:,} images in {readable_seconds(seconds)}: {images / seconds:,.0f} images/s, "
        f"{work_seconds / seconds:.2f} of {usable_cores()} cores used"
    )
