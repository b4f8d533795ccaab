"""The files of a folder of images: class folders, or folders for training, validation and test that hold them."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from common.data.images.reading import KINDS, SUFFIXES, Refuse, raise_error, some
from common.distributed.console import counted
from common.errors import UserError
from common.utils.printable import printable

PARTS = ("training", "validation", "test")
# The folders that are used as their names say, where there is one for training and another one.
TRAINING, VALIDATION, TEST = ("train",), ("val", "valid", "validation"), ("test",)
# Images that would be missed: they are refused. What else is left out is counted.
OTHER_KINDS = (
    ".avif", ".gif", ".heic", ".heif", ".jp2", ".jxl", ".pbm", ".pgm", ".pnm", ".ppm", ".tga", ".tif", ".tiff",
)  # fmt: skip

Classes = dict[str, list[str]]  # class -> its files, relative to the folder of the data set, sorted


@dataclass(frozen=True)
class FolderListing:
    """The files of a folder of images.

    Strings, because a million paths would take several times the memory.

    Attributes:
        classes: all files of each class; of a folder with parts training, validation and test in this order.
        counts: of each class, its images of training, validation and test; None: the folder has no parts.
        notes: lines about what was left out, and about a test without images of its own.
        tests_validation: the test has the images of the validation.
    """

    classes: Classes
    counts: dict[str, tuple[int, int, int]] | None
    notes: tuple[str, ...]
    tests_validation: bool = False

    def without(self, files: Set[str]) -> "FolderListing":
        """Return the listing without some files.

        Raises:
            UserError: no image of a class remains in a part.
        """
        classes = {name: [file for file in of_class if file not in files] for name, of_class in self.classes.items()}
        if self.counts is None:
            return replace(self, classes=classes)
        counts = {}
        for name, of_class in self.classes.items():
            first, second, _ = before = self.counts[name]
            parts = of_class[:first], of_class[first : first + second], of_class[first + second :]
            after = [sum(file not in files for file in part) for part in parts]
            for part, had, has in zip(PARTS, before, after, strict=True):
                if had and not has:
                    raise UserError(
                        f"a class has no readable image for {part}. Received: class {name} with "
                        f"{had} broken image(s). Replace them"
                    )
            counts[name] = (after[0], after[1], after[2])
        return replace(self, classes=classes, counts=counts)


class _LeftOut:
    """What is not read, with its reason: counted, and refused where it is images of other kinds."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = defaultdict(list)

    def add(self, name: str, reason: str) -> None:
        self.names[reason].append(name)

    def notes(self) -> list[str]:
        return [
            f"left out of the folder of images, {reason}: {len(names):,}, such as {printable(sorted(names)[0])}"
            for reason, names in sorted(self.names.items())
        ]


def list_folder(folder: Path, *, refuse: Refuse = raise_error) -> FolderListing:
    """Return the files of a folder, in an order that does not depend on the file system.

    Args:
        refuse: called with what is wrong with classes and files; if it raises nothing, all of them are listed.

    Raises:
        UserError: it is not a folder of class folders, a class is empty, or there are images of other kinds.
        OSError: it cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"the folder of images does not exist. Received: {folder}. Name an existing one")
    names = [entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
    parts = [sorted({*names}.intersection(part)) for part in (TRAINING, VALIDATION, TEST)]
    training, validation, test = parts
    left_out = _LeftOut()
    if training and (validation or test):
        if len(validation) > 1:
            raise UserError(
                f"several folders of validation images. Received: {', '.join(validation)} in {folder}. Keep one of them"
            )
        return _with_parts(folder, [part[0] if part else None for part in parts], left_out, refuse)
    if names and {*names} <= {*TRAINING, *VALIDATION, *TEST}:
        raise UserError(
            f"training images and validation or test images must be given together. Received: {folder} with only "
            f"{', '.join(sorted(names))}. Add the missing folder, or name a folder of class folders"
        )
    classes = _class_folders(folder, "", left_out, refuse)
    return FolderListing(classes, None, tuple(left_out.notes()))


def _with_parts(folder: Path, parts: Sequence[str | None], left_out: _LeftOut, refuse: Refuse) -> FolderListing:
    for entry in os.scandir(folder):
        if entry.name not in parts:
            hidden = entry.name.startswith(".")
            left_out.add(entry.name, "hidden" if hidden else "next to training, validation and test")
    training, validation, test = (
        _class_folders(folder, f"{part}/", left_out, refuse) if part else None for part in parts
    )
    notes = left_out.notes()
    if test is None:
        notes.append(f"there is no folder test: the test uses the same images as the validation, those of {parts[1]}")
        test = validation
    classes: Classes = {}
    counts = {}
    for other in (validation, test):
        if training is not None and other is not None and training.keys() != other.keys():
            refuse(
                f"training, validation and test have different classes. Received: {folder}, where "
                f"{some(sorted(training.keys() ^ other.keys()))} is not in all of them. Add or remove class folders"
            )
    for name in sorted({*(training or ()), *(validation or ()), *(test or ())}):
        files = [(of_part or {}).get(name, []) for of_part in (training, validation, test)]
        classes[name] = [file for of_part in files for file in of_part]
        counts[name] = (len(files[0]), len(files[1]), len(files[2]))
    return FolderListing(classes, counts, tuple(notes), tests_validation=parts[2] is None)


def _class_folders(root: Path, part: str, left_out: _LeftOut, refuse: Refuse) -> Classes:
    """Return the files of each class folder of a part of the data set, such as "train/"; "": of all of it."""
    classes: Classes = {}
    for entry in sorted(os.scandir(root / part), key=lambda entry: entry.name):
        if entry.name.startswith("."):
            left_out.add(part + entry.name, "hidden")
        elif entry.is_dir():
            classes[entry.name] = sorted(_images(root, f"{part}{entry.name}", left_out))
        else:
            left_out.add(part + entry.name, "next to the class folders")
    if others := left_out.names.pop("images of other kinds", None):
        refuse(
            f"{counted(len(others), 'image file')} in unsupported formats. Received: {some(sorted(others))} in "
            f"{root}. Convert them to {KINDS}, or move them away"
        )
    if len(classes) < 2:
        found = f"the one subfolder {next(iter(classes))}" if classes else "no subfolder"
        refuse(
            "a folder of images needs a subfolder for each of at least two classes. "
            f"Received: {root / part} with {found}. Sort the images into class folders"
        )
    if empty := [name for name, files in classes.items() if not files]:
        refuse(
            f"class folders without {KINDS} files. Received: {some(empty)} in {root / part}. "
            "Add images, or remove these folders"
        )
    return classes


def _images(root: Path, class_folder: str, left_out: _LeftOut) -> Iterator[str]:
    """Yield the image files of a class folder and of its subfolders, relative to the root."""
    waiting = [(class_folder, frozenset[tuple[int, int]]())]
    while waiting:
        inside, above = waiting.pop()
        status = (root / inside).stat()
        this = (status.st_dev, status.st_ino)
        if this in above:
            raise UserError(f"a link points back to a folder above it. Received: {inside} in {root}. Remove the link")
        for entry in os.scandir(root / inside):
            name, suffix = f"{inside}/{entry.name}", Path(entry.name).suffix.lower()
            if entry.name.startswith("."):
                left_out.add(name, "hidden")
            elif entry.is_dir():
                waiting.append((name, above | {this}))
            elif suffix in SUFFIXES:
                yield name
            elif suffix in OTHER_KINDS:
                left_out.add(name, "images of other kinds")
            else:
                left_out.add(name, "no images by their suffix")
