"""The order of the rows of a prepared file: classes split into parts, parts shuffled, both by the seed."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from common.data.images.listing import PARTS, FolderListing
from common.data.sharding import stable_permutation
from common.errors import UserError

# Uses of the seed: the split of each class, and the order within each part.
_CLASS_STREAM, _ORDER_STREAM = 0, 1


@dataclass(frozen=True)
class Shares:
    """Shares of training, validation and test, which add up to 1; `text` in percent, such as 85/2/13."""

    text: str
    training: Fraction
    validation: Fraction
    test: Fraction

    def of_class(self, name: str, count: int) -> tuple[int, int, int]:
        """Return the number of images of a class per part: rounded shares; training gets the remainder.

        Raises:
            UserError: a part with a share above 0 gets none.
        """
        validation, test = (int(share * count + Fraction(1, 2)) for share in (self.validation, self.test))
        counts = count - validation - test, validation, test
        for part, share, images in zip(PARTS, (self.training, self.validation, self.test), counts, strict=True):
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
    return Shares(text, *shares)


@dataclass(frozen=True)
class Rows:
    """The image of each row of the file: training, validation, test.

    Attributes:
        files: of each class, relative to the folder.
        labels: (rows,) int64, class numbers.
        numbers: (rows,) int64, index in the files of the class.
    """

    folder: Path
    class_names: tuple[str, ...]
    files: tuple[Sequence[str], ...]
    labels: np.ndarray
    numbers: np.ndarray
    counts: tuple[int, int, int]

    def file(self, row: int) -> str:
        """Return the file of a row, relative to the folder."""
        return self.files[self.labels[row]][self.numbers[row]]

    def chunks(self, size: int) -> Iterator[tuple[range, int]]:
        """Yield ranges of up to `size` rows within one part, in their order, and the part's number in PARTS."""
        first = 0
        for part, count in enumerate(self.counts):
            for start in range(first, first + count, size):
                yield range(start, min(start + size, first + count)), part
            first += count


def lay_out(folder: Path, listing: FolderListing, *, shares: Shares, seed: int) -> Rows:
    """Return the rows of the file, determined by names, shares and seed; a folder with parts has its own shares.

    Raises:
        UserError: a class has too few images for the split.
    """
    parts: list[list[np.ndarray]] = [[], [], []]
    for label, (name, files) in enumerate(listing.classes.items()):
        if listing.counts:
            counts, order = listing.counts[name], np.arange(len(files))
        else:
            counts = shares.of_class(name, len(files))
            order = stable_permutation(len(files), seed=seed, stream=(_CLASS_STREAM, label))
        for part, numbers in zip(parts, np.split(order, np.cumsum(counts)[:2]), strict=True):
            part.append(np.stack([np.full(len(numbers), label), numbers]))
    shuffled = []
    for stream, part in enumerate(parts):
        whole = np.concatenate(part, axis=1)
        shuffled.append(whole[:, stable_permutation(whole.shape[1], seed=seed, stream=(_ORDER_STREAM, stream))])
    labels, numbers = np.concatenate(shuffled, axis=1)
    training, validation, test = (part.shape[1] for part in shuffled)
    classes = listing.classes
    return Rows(folder, tuple(classes), tuple(classes.values()), labels, numbers, (training, validation, test))
