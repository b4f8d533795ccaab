"""Data sets by name: fetched once, checked, cached, and returned as read-only memory maps.

    python -m common datasets list | fetch NAME... | verify [NAME...]

In a program:

    >>> dataset = load_dataset("mnist")
    >>> dataset.train.images.shape, dataset.image_shape, dataset.class_count
    ((60000, 28, 28, 1), (28, 28, 1), 10)
"""

import functools
from pathlib import Path

from common.data import cache as dataset_cache
from common.data import sources, synthetic
from common.data.catalog import PUBLISHED
from common.data.dataset import Content, Dataset, Split, SplitContent
from common.data.images import folder as images
from common.data.images.prepared_file import COMMAND, load_prepared
from common.data.images.reading import KINDS
from common.errors import UserError
from common.utils.printable import suggestion

__all__ = ["Dataset", "Split", "dataset_help", "dataset_names", "load_dataset"]


def dataset_names() -> list[str]:
    """Return the names that `load_dataset` accepts, for help texts."""
    return [*PUBLISHED, "synthetic", synthetic.PATTERN, "images:PATH", "prepared:FILE"]


def dataset_help() -> str:
    """Return one paragraph for the command line's help."""
    return (
        f"{', '.join(PUBLISHED)}; synthetic or {synthetic.PATTERN} (learnable, made from a fixed seed, no files); "
        f"images:PATH (a folder of class folders of {KINDS} files, or PATH/train, PATH/val and PATH/test with such "
        "folders, one of the last two if there is no other); "
        f"prepared:FILE (made by `{COMMAND}`)"
    )


def load_dataset(
    name: str,
    *,
    source_folder: Path | None = None,
    image_size: tuple[int, int] | None = None,
    gray: bool = False,
) -> Dataset:
    """Return a data set, fetching it first if it is not in the cache.

    Args:
        name: one of `dataset_names()`.
        source_folder: searched first for the original files of a published data set; then come the folder named by
            the environment's HOROVOD_TWINS_DATA, mirrors, package clients.
        image_size: (height, width) to which images of a folder are resized.

    Returns:
        The data set. Its arrays are read-only.

    Raises:
        UserError: unknown name, no source works, unusable or damaged images, labels out of range, unusable cache
            folder.
    """
    kind, _, rest = name.partition(":")
    if kind != "images" and (image_size is not None or gray):
        raise UserError(
            f"image size and gray apply to images:PATH only. Received: data set {name}, image size {image_size}, "
            f"gray {gray}. Leave them out"
        )
    if name in PUBLISHED:
        build = functools.partial(_published_content, name, source_folder)
        return dataset_cache.load_or_build(name, build, name=name)
    if kind == "synthetic":
        return synthetic.load_synthetic(name)
    if kind == "images" and rest:
        return images.load_images(Path(rest), name=name, image_size=image_size, gray=gray)
    if kind == "prepared" and rest:
        return load_prepared(Path(rest), name=name)
    meant = suggestion(name, [*PUBLISHED, "synthetic", "images:PATH", "prepared:FILE"])
    raise UserError(f"unknown data set. Received: {name!r}. {meant}Use one of {', '.join(dataset_names())}")


def _published_content(name: str, source_folder: Path | None, work_folder: Path) -> Content:
    dataset = PUBLISHED[name]
    arrays, origin = sources.fetch_arrays(name, dataset, source_folder=source_folder, work_folder=work_folder)
    train_images, train_labels, test_images, test_labels = arrays
    return Content(
        class_names=dataset.class_names,
        image_shape=dataset.image_shape,
        train=SplitContent([train_images], train_labels),
        test=SplitContent([test_images], test_labels),
        origin=origin,
    )
