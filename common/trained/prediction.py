"""What both `predict.py` programs share: read a run, evaluate it or classify files with it, print what came out."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tabulate import tabulate

from common.config import Config, add_onednn_option
from common.data.batches import normalize
from common.data.dataset import check_labels
from common.data.images import reading
from common.data.images.reading import KINDS, Tally
from common.data.loading import load_dataset
from common.errors import UserError
from common.trained.trained_model import TrainedModel, read_trained_model
from common.utils.command_line import Parser, path, run_command

# (batch, height, width, channels) floats -> (batch, outputs) linear outputs, in inference mode
Classifier = Callable[[np.ndarray], np.ndarray]
BATCH_SIZE = 500
TOP_CLASSES = 3


def run_prediction(
    build_classifier: Callable[[TrainedModel], Classifier], arguments: Sequence[str] | None, *, program: str
) -> int:
    """Run the program; return its exit code."""
    options = _parse(arguments, program=program)

    def predict() -> None:
        if options.invert and not options.images:
            raise UserError(
                "only image files are inverted. Received: --invert and no file. Name files, or leave it out"
            )
        if options.data_folder and options.images:
            raise UserError(
                f"only a data set is read from its folder. Received: --data-folder {options.data_folder} and image "
                "files. Leave one of the two out"
            )
        model = read_trained_model(options.run).computed_with(options.onednn)
        classifier = build_classifier(model)
        if options.images:
            _classify_files(classifier, model, options.images, invert=options.invert)
        else:
            _evaluate(classifier, model, data_folder=options.data_folder)

    return run_command(predict, program=program)


def _parse(arguments: Sequence[str] | None, *, program: str) -> argparse.Namespace:
    parser = Parser(
        prog=program,
        description="Evaluate a run, of either framework, on its test samples, or classify images with it.",
    )
    parser.add_version()
    parser.add_argument("run", type=path, help="run folder; its final weights, or else its newest checkpoint, are used")
    parser.add_argument(
        "images", nargs="*", type=path, help="image files (none: the test samples of the run's data set)"
    )
    parser.add_argument("--invert", action="store_true", help="swap light and dark, for dark digits on white paper")
    parser.add_argument("--data-folder", type=path, help="folder that already holds the files of the data set")
    add_onednn_option(parser)
    return parser.parse_intermixed_args(arguments)


def _evaluate(classifier: Classifier, model: TrainedModel, *, data_folder: Path | None) -> None:
    data = model.config.data
    dataset = load_dataset(
        data.dataset, source_folder=data_folder or (Path(data.data_folder) if data.data_folder else None),
        image_size=data.image_size, gray=data.gray,
    )  # fmt: skip
    if dataset.image_shape != model.data.image_shape or dataset.class_names != tuple(model.data.class_names):
        raise UserError(
            f"the data set has changed since the run. Received: {dataset.name} with images "
            f"{dataset.image_shape} and {dataset.class_count} classes. Restore the data, or classify files"
        )
    print(*(f"note: {note}\n" for note in dataset.notes), sep="", end="")
    pixels, labels = dataset.test.images, np.asarray(dataset.test.labels)
    outputs = _classify(classifier, pixels, model)
    check_labels(labels, class_count=outputs.shape[1], where=dataset.name)
    correct = int((outputs.argmax(axis=1) == labels).sum())
    loss = losses(outputs, labels, config=model.config).mean()
    print(
        f"{dataset.name}: test loss {loss:.4f}, accuracy {100 * correct / len(labels):.2f} % ({correct}/{len(labels)})"
    )
    print(confusion_table(labels, outputs.argmax(axis=1), names=model.data.class_names))


def _classify(classifier: Classifier, pixels: np.ndarray, model: TrainedModel) -> np.ndarray:
    """Return (samples, outputs) float64 for (samples, height, width, channels) uint8 or float16."""
    table = model.table(pixels.dtype)
    batches = (np.ascontiguousarray(pixels[first : first + BATCH_SIZE]) for first in range(0, len(pixels), BATCH_SIZE))
    return np.concatenate([classifier(normalize(batch, table)) for batch in batches]).astype(np.float64)


def _classify_files(classifier: Classifier, model: TrainedModel, files: Sequence[Path], *, invert: bool) -> None:
    tally = Tally()
    shape = model.data.image_shape
    pixels = np.stack([read_image(file, shape=shape, invert=invert, tally=tally) for file in files])
    print(*(f"note: {note}\n" for note in tally.notes()), sep="", end="")
    outputs = _classify(classifier, pixels, model)
    names = [*model.data.class_names, *(f"output {n}" for n in range(len(model.data.class_names), outputs.shape[1]))]
    width = max(len(str(file)) for file in files)
    for file, row in zip(files, scores(outputs, config=model.config), strict=True):
        best = np.argsort(-row)[:TOP_CLASSES]
        print(f"{file!s:{width}}  " + "  ".join(f"{names[index]} {100 * row[index]:.1f} %" for index in best))
    if all(file.absolute().parent.name in model.data.class_names for file in files):
        labels = np.array([model.data.class_names.index(file.absolute().parent.name) for file in files])
        print(confusion_table(labels, outputs.argmax(axis=1), names=model.data.class_names))


def read_image(
    file: Path, *, shape: tuple[int, int, int], invert: bool = False, tally: Tally | None = None
) -> np.ndarray:
    """Return an image file as (height, width, channels) uint8, read as the training images were.

    Args:
        tally: counts what was done to it.

    Raises:
        UserError: the file cannot be read or is no image.
    """
    if shape[2] not in (1, 3):
        raise UserError(
            f"the run's images have {shape[2]} channels, but image files have 1 or 3. Received: {file}. Give no files"
        )
    image = reading.read_image(file, shape=shape)
    if isinstance(image, str):
        raise UserError(f"cannot read the image. Received: {file} ({image}). Give {KINDS} files")
    if tally is not None:
        tally.add(str(file), image)
    return 255 - image.pixels if invert else image.pixels


def scores(outputs: np.ndarray, *, config: Config) -> np.ndarray:
    """Return (samples, outputs): probabilities, or for mse without softmax what the loss compares with 0 and 1."""
    activation = "softmax" if config.optimizer.loss == "cross_entropy" else config.model.output_activation
    if activation == "softmax":
        exponentials = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return exponentials / exponentials.sum(axis=1, keepdims=True)
    # The logistic function; by tanh, so that large outputs do not overflow.
    return (1 + np.tanh(outputs / 2)) / 2 if activation == "sigmoid" else outputs


def losses(outputs: np.ndarray, labels: np.ndarray, *, config: Config) -> np.ndarray:
    """Return (samples,) float64: -log p(label), or the mean over outputs of (score - one-hot label) squared."""
    if config.optimizer.loss == "mse":
        return ((scores(outputs, config=config) - np.eye(outputs.shape[1])[labels]) ** 2).mean(axis=1)
    highest = outputs.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(outputs - highest).sum(axis=1)) + highest[:, 0]
    return log_sum - outputs[np.arange(len(labels)), labels]


def confusion_table(labels: np.ndarray, predictions: np.ndarray, *, names: Sequence[str]) -> str:
    """Return the confusion matrix as text: a row a true class, a column a predicted one."""
    columns = [*names, *(f"output {n}" for n in range(len(names), int(predictions.max()) + 1))]
    matrix = np.zeros((len(names), len(columns)), dtype=np.int64)
    np.add.at(matrix, (labels, predictions), 1)
    rows = [[name, *counts] for name, counts in zip(names, matrix.tolist(), strict=True)]
    alignment = ["left", *["right"] * len(columns)]
    return tabulate(rows, ["true \\ predicted", *columns], "plain", disable_numparse=True, colalign=alignment)
