"""The files of a folder of images: class folders, or folders for training, validation and test that hold them."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
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
OTHER_KINDS = ("avif", "gif", "heic", "heif", "jp2", "jxl", "pbm", "pgm", "pnm", "ppm", "tga", "tif", "tiff")

Classes = dict[str, list[str]]  # class -> its files, relative to the folder of the data set, sorted


@dataclass(frozen=True)
class FolderListing:
    """The files of a folder of images.

    Strings, because a million paths would take several times the memory.

    Attributes:
        classes: class -> its files, a list for each of PARTS; a single list where the folder has no parts.
        notes: lines about what was left out, and about a test without images of its own.
        tests_validation: the test has the images of the validation.
    """

    classes: Mapping[str, tuple[list[str], ...]]
    has_parts: bool
    notes: tuple[str, ...]
    tests_validation: bool = False

    def without(self, files: Set[str]) -> "FolderListing":
        """Return the listing without some files.

        Raises:
            UserError: no image of a class remains in a part.
        """
        classes = {}
        for name, parts in self.classes.items():
            classes[name] = tuple([file for file in part if file not in files] for part in parts)
            for part, before, after in zip(PARTS, parts, classes[name], strict=False):
                if self.has_parts and before and not after:
                    raise UserError(
                        f"a class has no readable image for {part}. Received: class {name} with "
                        f"{len(before)} broken image(s). Replace them"
                    )
        return replace(self, classes=classes)


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
    names = {entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")}
    training, validation, test = (sorted(names.intersection(part)) for part in (TRAINING, VALIDATION, TEST))
    walk = _Walk(folder, refuse)
    if training and (validation or test):
        if len(validation) > 1:
            raise UserError(
                f"several folders of validation images. Received: {', '.join(validation)} in {folder}. Keep one of them"
            )
        return _with_parts(walk, training[0], *(next(iter(part), None) for part in (validation, test)))
    if names and names <= {*TRAINING, *VALIDATION, *TEST}:
        raise UserError(
            f"training images and validation or test images must be given together. Received: {folder} with only "
            f"{', '.join(sorted(names))}. Add the missing folder, or name a folder of class folders"
        )
    classes = {name: (files,) for name, files in walk.class_folders("").items()}
    return FolderListing(classes, False, tuple(walk.notes()))


def _with_parts(walk: "_Walk", training: str, validation: str | None, test: str | None) -> FolderListing:
    for entry in os.scandir(walk.root):
        if entry.name not in (training, validation, test):
            hidden = entry.name.startswith(".")
            walk.left_out["hidden" if hidden else "next to training, validation and test"].append(entry.name)
    parts = [walk.class_folders(f"{part}/") if part else {} for part in (training, validation, test)]
    notes = walk.notes()
    if test is None:
        notes.append(f"there is no folder test: the test uses the same images as the validation, those of {validation}")
        parts[2] = parts[1]
    for name, other in ((validation, parts[1]), (test or validation, parts[2])):
        if name and parts[0].keys() != other.keys():
            walk.refuse(
                f"training, validation and test have different classes. Received: {walk.root}, where "
                f"{some(sorted(parts[0].keys() ^ other.keys()))} is not in all of them. Add or remove class folders"
            )
    names = sorted({*parts[0], *parts[1], *parts[2]})
    classes = {name: tuple(part.get(name, []) for part in parts) for name in names}
    return FolderListing(classes, True, tuple(notes), tests_validation=test is None)


class _Walk:
    """A walk through a folder: what is not read is counted, with its reason."""

    def __init__(self, root: Path, refuse: Refuse) -> None:
        self.root = root
        self.refuse = refuse
        self.left_out: dict[str, list[str]] = defaultdict(list)

    def notes(self) -> list[str]:
        return [
            f"left out of the folder of images, {reason}: {len(names):,}, such as {printable(sorted(names)[0])}"
            for reason, names in sorted(self.left_out.items())
        ]

    def class_folders(self, part: str) -> Classes:
        """Return the files of each class folder of a part of the data set, such as "train/"; "": of all of it."""
        classes: Classes = {}
        for entry in sorted(os.scandir(self.root / part), key=lambda entry: entry.name):
            if entry.name.startswith("."):
                self.left_out["hidden"].append(part + entry.name)
            elif entry.is_dir():
                classes[entry.name] = sorted(self._images(f"{part}{entry.name}"))
            else:
                self.left_out["next to the class folders"].append(part + entry.name)
        if others := self.left_out.pop("images of other kinds", None):
            self.refuse(
                f"{counted(len(others), 'image file')} in unsupported formats. Received: {some(sorted(others))} in "
                f"{self.root}. Convert them to {KINDS}, or move them away"
            )
        if unreadable := [name for name in classes if any("\ud800" <= letter <= "\udfff" for letter in name)]:
            self.refuse(
                "class folders whose names are not UTF-8, in which they are recorded. Received: "
                f"{some([printable(name) for name in unreadable])} in {self.root / part}. Rename them"
            )
        if len(classes) < 2:
            found = f"the one subfolder {next(iter(classes))}" if classes else "no subfolder"
            self.refuse(
                "a folder of images needs a subfolder for each of at least two classes. "
                f"Received: {self.root / part} with {found}. Sort the images into class folders"
            )
        if empty := [name for name, files in classes.items() if not files]:
            self.refuse(
                f"class folders without {KINDS} files. Received: {some(empty)} in {self.root / part}. "
                "Add images, or remove these folders"
            )
        return classes

    def _images(self, class_folder: str) -> Iterator[str]:
        """Yield the image files of a class folder and of its subfolders, relative to the root."""
        waiting = [(class_folder, frozenset[tuple[int, int]]())]
        while waiting:
            inside, above = waiting.pop()
            status = (self.root / inside).stat()
            this = (status.st_dev, status.st_ino)
            if this in above:
                raise UserError(
                    f"a link points back to a folder above it. Received: {inside} in {self.root}. Remove the link"
                )
            for entry in os.scandir(self.root / inside):
                name, suffix = f"{inside}/{entry.name}", Path(entry.name).suffix.lower()
                if entry.name.startswith("."):
                    self.left_out["hidden"].append(name)
                elif entry.is_dir():
                    waiting.append((name, above | {this}))
                elif suffix in SUFFIXES:
                    yield name
                else:
                    other = suffix[1:] in OTHER_KINDS
                    self.left_out["images of other kinds" if other else "no images by their suffix"].append(name)
