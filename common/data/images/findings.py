"""What was found in images before they are trained on: counts, what is done to them, and what looks wrong."""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from common.config.training import TrainingConfig
from common.data.images.contact_sheet import SHEET_CLASSES, SHEET_IMAGES, picture_of, thumbnail
from common.data.images.listing import PARTS
from common.data.images.reading import CHANGES, Header, ReadImage, Tally, some
from common.distributed.console import counted
from common.utils.printable import printable

FEW_TEST_IMAGES = 10  # of fewer, each is more than a tenth of its class's accuracy
# Beside CHANGES:
UNREADABLE, COPIES, ONE_COLOR = "images that are not readable", "images equal to another one", "images of one color"


class Item(NamedTuple):
    """An image: its name, the numbers of its class and of its part in PARTS."""

    name: str
    label: int
    part: int


class View(NamedTuple):
    """An image as a network gets it, the header of its file, and a digest of its shape and pixels."""

    header: Header
    image: ReadImage
    digest: bytes


class Shown(NamedTuple):
    """A small picture and the text below it."""

    picture: Image.Image
    caption: str


@dataclass
class Findings:
    """What was found.

    Attributes:
        path: of the folder or file.
        counts: (classes, 3) images of training, validation and test, which may have those of the validation.
        items: each image once.
        problems: lines about what training would refuse, and about classes that are too small to be prepared.
        notes: lines about what was left out, and how the parts were made.
        headers: names and headers of readable images.
        odd: what was changed or looks wrong -> names of images.
        sheets: the same, and names of the first classes -> some pictures.
    """

    path: Path
    class_names: Sequence[str]
    counts: np.ndarray
    items: Sequence[Item]
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    headers: list[tuple[str, Header]] = field(default_factory=list)
    odd: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    sheets: dict[str | int, list[Shown]] = field(default_factory=lambda: defaultdict(list))
    _tally: Tally = field(default_factory=Tally)
    _equal: dict[bytes, list[Item]] = field(default_factory=lambda: defaultdict(list))

    def add(self, item: Item, view: View | str) -> None:
        """Add an image; text: why it is not readable."""
        if isinstance(view, str):
            self.odd[UNREADABLE].append(f"{item.name} ({view})")
            return
        self.headers.append((item.name, view.header))
        self._tally.add(item.name, view.image)
        equal, pixels = self._equal[view.digest], view.image.pixels
        odd = {CHANGES[change]: item.name for change in view.image.changes}
        if (pixels == pixels[0, 0]).all():
            odd[ONE_COLOR] = item.name
        if equal:
            odd[COPIES] = f"{item.name} = {equal[0].name}"
        equal.append(item)
        for kind, name in odd.items():
            self.odd[kind].append(name)
            if len(self.odd[kind]) <= SHEET_IMAGES:
                self.sheets[kind].append(_shown(pixels, name))
        if item in self._examples:
            self.sheets[item.label].append(_shown(pixels, ", ".join([item.name, *view.image.changes])))

    @functools.cached_property
    def _examples(self) -> set[Item]:
        """Some images of each of the first classes, from all over the class."""
        of_class = defaultdict(list)
        for item in self.items:
            of_class[item.label].append(item)
        return {
            items[place]
            for label, items in of_class.items()
            if label < SHEET_CLASSES
            for place in np.linspace(0, len(items) - 1, min(len(items), SHEET_IMAGES)).astype(int)
        }

    @property
    def sizes(self) -> Counter[tuple[int, int]]:
        """(height, width) of the files -> images."""
        return Counter((header.height, header.width) for _, header in self.headers)

    @property
    def kinds(self) -> Counter[str]:
        """Formats and pixel formats of the files -> images."""
        return Counter(header.kind for _, header in self.headers)

    def flags(self) -> list[str]:
        """Return a line for each kind of thing that looks wrong, what training would refuse first."""
        training, _, test = self.counts.T
        refused = f"{UNREADABLE}, which training refuses and `images prepare --skip-broken` leaves out"
        few = (test > 0) & (test < FEW_TEST_IMAGES)
        lines = [
            *self.problems,
            *line_about(refused, self.odd.get(UNREADABLE, ()), joint="; "),
            *line_about("classes without training images", self._classes(training == 0)),
            *line_about("classes without test images", self._classes(test == 0)),
            *line_about(f"classes with fewer than {FEW_TEST_IMAGES} test images", self._classes(few)),
            *line_about("equal images in several classes", self._copies(lambda classes, parts: classes > 1)),
            *line_about("equal images in several parts", self._copies(lambda classes, parts: parts > 1)),
            *line_about(ONE_COLOR, self.odd.get(ONE_COLOR, ())),
        ]
        if training.sum() < TrainingConfig.batch_size:
            batch = f"fewer than one batch of {TrainingConfig.batch_size} (--batch-size)"
            lines.append(f"training images: {training.sum():,}, {batch}")
        return [printable(line) for line in lines]

    def _classes(self, chosen: np.ndarray) -> list[str]:
        return [self.class_names[label] for label in np.flatnonzero(chosen).tolist()]

    def _copies(self, are_meant: Callable[[int, int], bool]) -> list[str]:
        """Return groups of equal images.

        Args:
            are_meant: takes the numbers of classes and of parts of a group.
        """
        groups = [items for items in self._equal.values() if len(items) > 1]
        return [
            some([f"{item.name} ({PARTS[item.part]})" for item in items], joint=" = ")
            for items in groups
            if are_meant(len({item.label for item in items}), len({item.part for item in items}))
        ]

    def all_notes(self) -> list[str]:
        """Return the notes, what was done to images, and copies that may be harmless."""
        copies = self._copies(lambda classes, parts: classes == parts == 1)
        lines = [*self.notes, *self._tally.notes(), *line_about("equal images in the same class and part", copies)]
        return [printable(line) for line in lines]

    def summary(self) -> str:
        """Return the numbers of images, classes and parts, sizes and formats."""
        sums = self.counts.sum(axis=0)
        parts = ", ".join(f"{images:,} {part}" for part, images in zip(PARTS, sums, strict=True) if images)
        one, *others = [f"{height}x{width} pixels (height x width)" for height, width in self.sizes] or ["no size"]
        sizes = f"{len(others) + 1:,} sizes" if others else one
        classes = "1 class" if len(self.class_names) == 1 else f"{len(self.class_names):,} classes"
        line = f"{counted(len(self.items), 'image')} of {classes}: {parts}; {sizes}"
        return ", ".join([line, *self.kinds])


def line_about(text: str, found: Sequence[str], *, joint: str = ", ") -> list[str]:
    """Return a line with the first few of what was found; none if there is nothing."""
    return [f"{text}: {len(found):,}, such as {some(found, joint=joint)}"] if found else []


def _shown(pixels: np.ndarray, caption: str) -> Shown:
    return Shown(thumbnail(picture_of(pixels)), printable(caption))
