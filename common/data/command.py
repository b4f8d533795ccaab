"""`python -m common datasets`: list, fetch and verify the cached data sets."""

import argparse

from tabulate import tabulate

from common.data import cache as dataset_cache
from common.data import sources
from common.data.cache import DamagedEntryError
from common.data.catalog import PUBLISHED
from common.data.formats import ENCODERS
from common.data.loading import dataset_help, load_dataset
from common.errors import UserError
from common.utils.command_line import Parser, image_size, path
from common.utils.printable import printable


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the `datasets` command; each of its actions sets `run`, a function of the parsed options."""
    parser = commands.add_parser("datasets", help="list, fetch and verify data sets")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="show all data sets and which of them are in the cache")
    listing.set_defaults(run=lambda options: list_datasets())

    fetch = actions.add_parser("fetch", help="download data sets into the cache")
    fetch.add_argument("names", nargs="+", metavar="NAME", help=dataset_help())
    fetch.add_argument(
        "--data-folder", type=path, metavar="FOLDER", help="folder with the original files, searched first"
    )
    fetch.add_argument("--image-size", type=image_size, metavar="HEIGHTxWIDTH", help="pixels, for images:PATH")
    fetch.add_argument("--gray", action="store_true", help="convert to one channel, for images:PATH")
    fetch.set_defaults(run=fetch_datasets)

    verify = actions.add_parser("verify", help="recompute all checksums of cached data sets")
    verify.add_argument("names", nargs="*", metavar="NAME", help="names as `list` shows them (default: all cached)")
    verify.set_defaults(run=lambda options: verify_datasets(options.names))


def list_datasets() -> None:
    """Print a table of the published data sets and of all other cache entries."""
    cached = dataset_cache.entries()
    rows: list[tuple[str, ...]] = []
    for name, dataset in PUBLISHED.items():
        training, test = (f"{count:,}" for count in dataset.samples)
        size = _size(name) if name in cached else "no"
        shape = "x".join(map(str, dataset.image_shape))
        rows.append((name, training, test, shape, str(len(dataset.class_names)), size, dataset.title))
    for entry in cached:
        if entry not in PUBLISHED:
            rows.append(_row_of_entry(entry))
    headings = ["name", "training", "test", "image", "classes", "in the cache", "what"]
    print(tabulate(rows, headings, "plain", disable_numparse=True))
    print(f"\ncache: {dataset_cache.datasets_folder()} (set HOROVOD_TWINS_CACHE to move it)")
    print("also: synthetic, synthetic:SAMPLESxHEIGHTxWIDTHxCHANNELSxCLASSES, images:PATH, prepared:FILE")


def fetch_datasets(options: argparse.Namespace) -> None:
    """Put data sets into the cache.

    Raises:
        UserError: see `load_dataset`.
    """
    for name in options.names:
        dataset = load_dataset(
            name, source_folder=options.data_folder, image_size=options.image_size, gray=options.gray
        )
        shape, own = "x".join(map(str, dataset.image_shape)), dataset.validation_samples
        training = f"{len(dataset.train) - own:,} training" + (f", {own:,} validation" if own else "")
        print(f"{printable(name)}: {training} and {len(dataset.test):,} test images of {shape}, ready")
        for note in dataset.notes:
            print(f"note: {note}")


def verify_datasets(names: list[str]) -> None:
    """Recompute the checksums of cached data sets: of our files, and for published ones of the original files too.

    Raises:
        UserError: one is missing or damaged; the others are still checked.
    """
    cached = dataset_cache.entries()
    missing = [name for name in names if name not in cached]
    if missing:
        raise UserError(
            f"not in the cache. Received: {', '.join(missing)}; cached: {', '.join(cached) or 'none'}. "
            "Run `python -m common datasets fetch NAME` first"
        )
    damaged = []
    for name in names or cached:
        problem = _problem_of_entry(name)
        print(f"{name}: {problem or 'all checksums match'}", flush=True)
        if problem:
            damaged.append(name)
    if damaged:
        raise UserError(
            f"damaged data sets in the cache. Received: {', '.join(damaged)}. Remove their folders in "
            f"{dataset_cache.datasets_folder()}: they are rebuilt on the next use"
        )


def _problem_of_entry(entry: str) -> str | None:
    """Return the problem of a cache entry; None if there is none."""
    try:
        dataset = dataset_cache.load_entry(entry, name=entry, full_check=True)
    except (DamagedEntryError, UserError) as error:
        return str(error)
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    if entry in PUBLISHED:
        original = PUBLISHED[entry].packagings[0]
        arrays = dataset.train.images, dataset.train.labels, dataset.test.images, dataset.test.labels
        if wrong := sources.wrong_checksums(original, ENCODERS[original.format](arrays)):
            return f"wrong MD5: {', '.join(wrong)}"
    return None


def _row_of_entry(entry: str) -> tuple[str, ...]:
    try:
        meta = dataset_cache.read_meta(entry)
    except (DamagedEntryError, OSError) as error:
        return entry, "", "", "", "", "damaged", str(error)
    shapes = [meta["files"][f"{split}_images.npy"]["shape"] for split in ("train", "test")]
    counts = [f"{shape[0]:,}" for shape in shapes]
    shape = "x".join(map(str, shapes[0][1:]))
    return entry, *counts, shape, str(len(meta["class_names"])), _size(entry), printable(meta["origin"])


def _size(entry: str) -> str:
    folder = dataset_cache.datasets_folder() / entry
    return f"{sum(path.stat().st_size for path in folder.iterdir()) / 1e6:,.1f} MB"
