"""The order of the images of a folder as a data set: training, validation, test.

A folder with parts keeps them. Otherwise, each class is split: by a fixed seed and share for `images:PATH`, by its own
for a prepared file, whose seed shuffles each part, too.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from common.data.images.listing import PARTS, FolderListing
from common.data.images.reading import Refuse, raise_error
from common.data.sharding import stable_permutation
from common.errors import UserError

TEST_SHARE, SPLIT_SEED = 0.15, 0  # of images:PATH
# Uses of the seed of a prepared file: the split of each class, and the order within each part.
_CLASS_STREAM, _ORDER_STREAM = 0, 1


@dataclass(frozen=True)
class Shares:
    """Shares of the PARTS, which add up to 1; `text` in percent, such as 85/2/13."""

    text: str
    of_parts: Sequence[Fraction]

    def of_class(self, name: str, count: int) -> tuple[int, int, int]:
        """Return the number of images of a class per part: rounded shares; training gets the remainder.

        Raises:
            UserError: a part with a share above 0 gets none.
        """
        _, validation, test = (int(share * count + Fraction(1, 2)) for share in self.of_parts)
        counts = count - validation - test, validation, test
        for part, share, images in zip(PARTS, self.of_parts, counts, strict=True):
            if share > 0 and images < 1:
                raise UserError(
                    f"a class has too few images for the split: none remains for {part}. Received: class {name} with "
                    f"{count} image(s), --split {self.text}. Add images or give other shares"
                )
        return counts


def parse_shares(text: str) -> Shares:
    """Return the shares of a text like `85/2/13`: percent of training, validation and test.

    Raises:
        UserError: not three numbers that add up to 100, or the share of training or test is 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)", text)
    shares = [Fraction(number) / 100 for number in match.groups()] if match else []
    if sum(shares) != 1:
        raise UserError(
            f"a split is three numbers that add up to 100. Received: --split {text}. Give percent of training, "
            "validation and test, such as 85/2/13"
        )
    if not (shares[0] and shares[2]):
        raise UserError(
            f"training and test need images, because the trainers end with a test. Received: --split {text}. Give more "
            "than 0 to both; validation may have 0"
        )
    return Shares(text, shares)


@dataclass(frozen=True)
class Rows:
    """The image of each row of the data set.

    Attributes:
        files: of each class, relative to the folder.
        labels: (rows,) int64, class numbers.
        numbers: (rows,) int64, index in the files of the class.
        counts: rows of training, validation and test.
        tests_validation: the test has the images of the validation.
    """

    folder: Path
    class_names: tuple[str, ...]
    files: tuple[Sequence[str], ...]
    labels: np.ndarray
    numbers: np.ndarray
    counts: tuple[int, int, int]
    tests_validation: bool

    def file(self, row: int) -> str:
        """Return the file of a row, relative to the folder."""
        return self.files[self.labels[row]][self.numbers[row]]

    def of_part(self, part: int) -> range:
        """Return the rows of a part, by its number in PARTS."""
        first = sum(self.counts[:part])
        return range(first, first + self.counts[part])

    def own(self) -> range:
        """Return the rows that have each image once."""
        return range(sum(self.counts[:2]) if self.tests_validation else len(self.labels))


def rows_in_order(folder: Path, listing: FolderListing, *, refuse: Refuse = raise_error) -> Rows:
    """Return the rows of `images:PATH`: by part, class and name.

    Args:
        refuse: called if there are no test images.
    """

    def split(label: int, _: str, count: int) -> list[np.ndarray]:
        # At least one test image per class, but never its only image.
        tested = min(max(1, round(TEST_SHARE * count)), count - 1)
        order = stable_permutation(count, seed=SPLIT_SEED, stream=(label,))
        return [np.sort(order[tested:]), order[:0], np.sort(order[:tested])]

    rows = _rows(folder, listing, split, arrange=lambda part, images: images)
    if not rows.counts[2]:
        refuse(
            f"each class has only one image, so none remains for the test. Received: {folder}. Add images, or "
            "create the folders train and test"
        )
    return rows


def shuffled_rows(folder: Path, listing: FolderListing, *, shares: Shares, seed: int) -> Rows:
    """Return the rows of a prepared file: classes split into parts, parts shuffled, both by the seed.

    Raises:
        UserError: a class has too few images for the split.
    """

    def split(label: int, name: str, count: int) -> list[np.ndarray]:
        order = stable_permutation(count, seed=seed, stream=(_CLASS_STREAM, label))
        return np.split(order, np.cumsum(shares.of_class(name, count))[:2])

    def shuffle(part: int, images: np.ndarray) -> np.ndarray:
        return images[:, stable_permutation(images.shape[1], seed=seed, stream=(_ORDER_STREAM, part))]

    return _rows(folder, listing, split, arrange=shuffle)


def _rows(
    folder: Path,
    listing: FolderListing,
    split: Callable[[int, str, int], Sequence[np.ndarray]],
    *,
    arrange: Callable[[int, np.ndarray], np.ndarray],
) -> Rows:
    """Return the rows of a folder.

    Args:
        split: of a class by number, name and images, the numbers of those for each part, where the folder has no parts.
        arrange: puts the images of a part, by its number, into their order: (2, images) class numbers and numbers.
    """
    parts: list[list[np.ndarray]] = [[np.zeros((2, 0), np.int64)] for _ in PARTS]
    files = {name: [file for part in of_class for file in part] for name, of_class in listing.classes.items()}
    for label, (name, of_class) in enumerate(listing.classes.items()):
        if listing.has_parts:
            ends = np.cumsum([len(part) for part in of_class])
            numbers: Sequence[np.ndarray] = np.split(np.arange(ends[-1]), ends[:2])
        else:
            numbers = split(label, name, len(files[name]))
        for part, of_part in zip(parts, numbers, strict=True):
            part.append(np.stack([np.full(len(of_part), label), of_part]))
    arranged = [arrange(number, np.concatenate(part, axis=1)) for number, part in enumerate(parts)]
    training, validation, test = (part.shape[1] for part in arranged)
    whole = np.concatenate(arranged, axis=1)
    counts = training, validation, test
    return Rows(folder, tuple(files), tuple(files.values()), whole[0], whole[1], counts, listing.tests_validation)
