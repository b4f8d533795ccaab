"""Runs of `mlp` on several ranks, worked out by hand in NumPy: averaging, unequal parts of a batch, all-reduce."""

from dataclasses import dataclass

import numpy as np
from reference_rules import losses

from common.data.loading import load_dataset
from common.data.sharding import epoch_order, rank_slice, split_validation
from common.model.specs import model_spec
from common.model.weights import draw_initial_weights

DATASET = "synthetic:1200x28x28x1x10"
BATCH, RATE, EPOCHS, STEPS, SEED = 32, 0.05, 2, 5, 1
DATA = ["--dataset", DATASET, "--validation-share", "0.1", "--batch-size", str(BATCH), "--epochs", str(EPOCHS)]
MLP = [*DATA, "--model", "mlp", "--dtype", "float64", "--steps-per-epoch", str(STEPS)]
MLP += ["--lr-scaling", "none", "--learning-rate", str(RATE)]


@dataclass(frozen=True)
class Case:
    """A run of mlp on two ranks, and what is worked out for it by hand.

    Attributes:
        every: updates between averagings of the weights; None: all-reduce.
        topk: the share of each gradient that is averaged.
        batch_sizes: what the ranks take of a global batch, by `more`.
        more: other flags.
    """

    every: int | str | None = None
    momentum: float = 0.9
    average_state: bool = True
    warmup: int = 0
    topk: float | None = None
    batch_sizes: tuple[int, int] = (BATCH, BATCH)
    more: str = ""

    @property
    def arguments(self):
        flags = ["--momentum", str(self.momentum), *self.more.split()]
        if self.topk:
            flags += ["--topk", str(self.topk)]
        if self.every is None:
            return [*MLP, *flags]
        flags += ["--strategy", "averaging", "--average-every", str(self.every), "--warmup-allreduce", str(self.warmup)]
        return [*MLP, *flags, "--average-state" if self.average_state else "--no-average-state"]


# Each rank has a dictionary of weights and one of momentum buffers; every formula is in float64.


def outputs_of(weights, pixels):
    """Return the hidden values and the outputs of mlp: dense, sigmoid, dense; pixels (samples, 784)."""
    hidden = 1 / (1 + np.exp(-(pixels @ weights["fc1.weight"].T + weights["fc1.bias"])))
    return hidden, hidden @ weights["fc2.weight"].T + weights["fc2.bias"]


def gradient(weights, pixels, labels):
    """Return the gradient of mlp's mean cross entropy."""
    hidden, outputs = outputs_of(weights, pixels)
    _, of_outputs = losses(outputs, labels)["cross_entropy"]
    of_hidden = (of_outputs @ weights["fc2.weight"]) * hidden * (1 - hidden)
    return {
        "fc1.weight": of_hidden.T @ pixels,
        "fc1.bias": of_hidden.sum(axis=0),
        "fc2.weight": of_outputs.T @ hidden,
        "fc2.bias": of_outputs.sum(axis=0),
    }


def mean(ranks, batch_sizes):
    """Return the mean over ranks, weighted by their images."""
    return {name: np.average([one[name] for one in ranks], axis=0, weights=batch_sizes) for name in ranks[0]}


def largest(total, share):
    """Return an array with only its largest entries by magnitude; of equal ones, the first."""
    places = np.argsort(-np.abs(total), axis=None, kind="stable")[: max(1, round(share * total.size))]
    sent = np.zeros_like(total)
    sent.flat[places] = total.flat[places]
    return sent


def first_weights():
    """Return the weights of mlp that are drawn from the seed."""
    return draw_initial_weights(model_spec("mlp", input_shape=(1, 28, 28), outputs=10), seed=SEED, dtype="float64")


def pixels_of(run, split, rows):
    """Return the pixels (samples, 784) of some samples of a split, as the run's model sees them."""
    data, images = run.record.data, split.images[rows]
    return (images.reshape(len(images), -1) / 255 - data.mean[0]) / data.standard_deviation[0]


def batches(run, update, *, batch_sizes):
    """Return pixels (samples, 784) and labels of each rank in an update of the run, counted from 0."""
    split = load_dataset(DATASET).train
    training, _ = split_validation(1200, share=0.1, seed=SEED)
    order = training[epoch_order(len(training), seed=SEED, epoch=update // STEPS + 1)]
    parts = (order[rank_slice(update % STEPS, rank=rank, batch_sizes=batch_sizes)] for rank in range(len(batch_sizes)))
    return [(pixels_of(run, split, rows), split.labels[rows]) for rows in parts]


def by_hand(case, run, *, start=None):
    """Return the weights averaged over two ranks at the end of each epoch, and those at the end of the run.

    Args:
        start: the first weights; None: those drawn from the seed.
    """
    weights = [start or first_weights()] * 2
    buffers = [{name: np.zeros_like(array) for name, array in one.items()} for one in weights]
    residuals = [dict.fromkeys(weights[0], np.zeros(())) for _ in range(2)]
    interval = STEPS if case.every == "epoch" else int(case.every or 1)
    averages = []
    for update in range(1, EPOCHS * STEPS + 1):
        parts = batches(run, update - 1, batch_sizes=case.batch_sizes)
        found = [gradient(weights[rank], *part) for rank, part in enumerate(parts)]
        if case.topk:  # error feedback: what is not sent is added to the next gradient (arXiv 1809.07599)
            parts_of_mean = np.divide(case.batch_sizes, np.mean(case.batch_sizes))
            totals = [
                {name: part * array + residual[name] for name, array in own.items()}
                for part, own, residual in zip(parts_of_mean, found, residuals, strict=True)
            ]
            sent = [{name: largest(array, case.topk) for name, array in own.items()} for own in totals]
            residuals = [{name: own[name] - gone[name] for name in own} for own, gone in zip(totals, sent, strict=True)]
            found = [mean(sent, (1, 1))] * 2
        elif case.every is None or update <= case.warmup:
            found = [mean(found, case.batch_sizes)] * 2
        for rank in range(2):
            buffers[rank] = {name: case.momentum * buffers[rank][name] + found[rank][name] for name in found[rank]}
            weights[rank] = {name: array - RATE * buffers[rank][name] for name, array in weights[rank].items()}
        if update > case.warmup and update % interval == 0:
            weights = [mean(weights, case.batch_sizes)] * 2
            buffers = [mean(buffers, case.batch_sizes)] * 2 if case.average_state else buffers
        if update % STEPS == 0:
            averages.append(mean(weights, case.batch_sizes))
    return averages


def loss_and_accuracy(weights, run, split, rows):
    """Return the mean loss and the accuracy of mlp over some samples of a split."""
    _, outputs = outputs_of(weights, pixels_of(run, split, rows))
    labels = split.labels[rows]
    loss, _ = losses(outputs, labels)["cross_entropy"]
    return loss, float(np.mean(outputs.argmax(axis=1) == labels))


def validation_loss(weights, run):
    """Return the loss of mlp over the validation samples."""
    _, rows = split_validation(1200, share=0.1, seed=SEED)
    return loss_and_accuracy(weights, run, load_dataset(DATASET).train, rows)[0]
