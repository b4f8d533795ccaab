"""The training of one rank: `Strategy` is a process alone, the other files say what each strategy does otherwise."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.data.batches import Batch
from common.distributed.communicator import Communicator
from common.measurement.metrics import Sums
from common.model.dropout import dropout_seeds
from common.model.weights import Weights
from common.run.strategy import RankStrategy
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import ring_record
from common.strategies.straggler import slowdown_of
from common.task.rank_batches import RankBatches
from common.task.task import Task
from keras_impl import distributed
from keras_impl.batch_norm import freeze_batch_norm
from keras_impl.compiling import compile_errors, compiled
from keras_impl.exchange import GroupExchange
from keras_impl.exchange_meter import ExchangeMeter
from keras_impl.optimizers import loss_per_sample
from keras_impl.strategies.rehearsal import undone
from keras_impl.strategies.straggler import late, timed_from_here
from keras_impl.strategies.sums import PlaceSums
from keras_impl.weights import get_optimizer_state, get_weights, load_optimizer_state, load_weights

Gradients = tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]  # outputs, losses, gradients


class Strategy(RankStrategy):
    """One process alone, and what ranks with whole models have in common.

    Attributes:
        exchange: of the ranks that hold pieces of the same layers.
    """

    exchange: GroupExchange | None = None
    model: keras.Model
    optimizer: keras.optimizers.Optimizer

    def __init__(self, task: Task, *, comm: Communicator, device: str, meter: ExchangeMeter | None = None) -> None:
        super().__init__(task, comm=comm)
        self.device = device
        # Where gradients are averaged in several groups, the times of these overlap.
        self.meter = meter or ExchangeMeter(times=task.measured_config.device.gradient_groups == "one")
        self._counted_before = 0
        self._slowdown = slowdown_of(task, rank=comm.rank)
        self._samples, self._image_shape = task.samples_of_ranks[comm.data_rank], task.dataset.image_shape

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which model and optimizer are built."""
        return nullcontext()

    def wrap(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Take model and optimizer, with what ranks share before and after each update."""
        self.model, self.optimizer = model, optimizer
        self._sums = PlaceSums(self._samples)
        images = tf.TensorSpec((None, *self._image_shape), self.task.table.dtype)
        labels = tf.TensorSpec((None,), tf.int64)
        self._evaluate_batch = tf.function(self._sums_of_batch, input_signature=(images, labels), autograph=False)
        self._compile()

    def _compile(self) -> None:
        images = tf.TensorSpec((None, self._samples, *self._image_shape), self.task.table.dtype)
        labels = tf.TensorSpec((None, self._samples), tf.int64)
        self._train_stack = tf.function(self._updates, input_signature=(images, labels), autograph=False)
        self._pass = compiled(self._one_pass) if self.task.config.model.compile else self._one_pass

    def updates_made(self) -> int:
        """Return the updates made since `start_epoch`, also within a stack that fails."""
        return self.meter.updates - self._counted_before

    def load(self, weights: Weights, optimizer: Weights | None = None) -> None:
        """Load what `weights` and `optimizer_state` returned; without the latter the optimizer stays as it is."""
        load_weights(self.model, weights, spec=self.spec)
        if optimizer:
            load_optimizer_state(self.optimizer, optimizer, model=self.model, spec=self.spec)

    def weights(self) -> Weights:
        """Return the weights and BatchNorm statistics under the names of the weights file; copies, on the host."""
        return get_weights(self.model, spec=self.spec)

    def optimizer_state(self) -> Weights:
        """Return "<parameter>.<slot>" -> array in the layout of the weights file, and the counts of the optimizer."""
        return get_optimizer_state(self.optimizer, model=self.model, spec=self.spec)

    def kept_arrays(self) -> Weights:
        """Return copies of `kept`, on the host."""
        return {name: variable.numpy() for name, variable in self.kept().items()}

    def broadcast(self, *, from_checkpoint: bool) -> None:
        """Give all ranks the weights and the optimizer state of rank 0, unless each has read them."""
        if not from_checkpoint:
            distributed.broadcast_state(
                self.model, self.optimizer, spec=self.spec, config=self.task.config.device, comm=self.comm
            )

    def rehearse(self, batches: RankBatches, epoch: int) -> None:
        """Train on the first batch of an epoch and undo it; all ranks call this, before an update is timed.

        Raises:
            UserError: with `--compile`, it cannot be compiled; on all ranks.
        """
        self._freeze_batch_norm(epoch)
        with undone(self):
            if self.task.config.model.compile:
                with compile_errors(self.comm):  # alone, so that an error ends all ranks before they exchange
                    images, labels = next(batches.training(epoch, most=1))
                    self.passes(tf.constant(images[0]), tf.constant(labels[0]))
            for _ in self.rehearsals():
                self.step(*next(batches.training(epoch, most=1)))

    def start_epoch(self, epoch: int, own: PartialEpoch) -> None:
        """Prepare an epoch, of which some may be done: sums, dropout masks, BatchNorm, what is this rank's own."""
        self.epoch = epoch
        self._freeze_batch_norm(epoch)
        self._sums.restart()
        self._seed_dropout()
        if own.weights or own.optimizer_state:
            self.load({**self.weights(), **own.weights}, own.optimizer_state)
        for name, variable in self._variables().items():
            if name in own.state:  # seeds are not of a rank that joins in the middle of an epoch
                variable.assign(own.state[name].reshape(variable.shape))
        if self._slowdown:
            self._slowdown.start_at(self.task.steps_after(epoch - 1) + own.steps)
        self._counted_before = self.meter.updates

    def step(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Make the updates of a stack, in one call: images (updates, batch, ...), labels (updates, batch)."""
        self._train_stack(tf.constant(images), tf.constant(labels))

    def _updates(self, images: tf.Tensor, labels: tf.Tensor) -> None:
        """Make the updates of a stack one after the other, in a graph: a call for each would cost more than some do."""

        def one(number: tf.Tensor) -> tf.Tensor:
            its_labels = labels[number]
            outputs, losses = self.update(images[number], its_labels)
            self.meter.count_update()
            self._sums.add(outputs, losses, its_labels)
            return number + 1

        count = tf.shape(labels)[0]
        tf.while_loop(lambda number: number < count, one, [tf.constant(0)], parallel_iterations=1)

    def update(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Update the weights with a batch, in a graph; return its outputs and losses as they were before."""
        if self._slowdown:
            started, images = timed_from_here(images)
        outputs, losses, gradients = self.passes(images, labels)
        if self._slowdown:
            gradients = late(gradients, self._slowdown, started=started)
        self.apply(self.before_update(gradients))
        self.after_update()
        return outputs, losses

    def passes(self, images: tf.Tensor, labels: tf.Tensor) -> Gradients:
        """Return outputs, losses and gradients of a batch, in a graph."""
        passes = self.share.passes
        return self._pass(images, labels) if passes == 1 else _accumulated(self._pass, images, labels, passes=passes)

    def before_update(self, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return what the weights are updated with, in a graph."""
        return gradients

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Let the optimizer update the weights, in a graph."""
        self.optimizer.apply(gradients, self.model.trainable_variables)

    def after_update(self) -> None:
        """Do what follows an update, in a graph."""

    def _one_pass(self, images: tf.Tensor, labels: tf.Tensor) -> Gradients:
        with tf.GradientTape() as tape:
            outputs = self.model(images, training=True)
            losses = self.losses(outputs, labels)
            loss = self.optimizer.scale_loss(self._loss(losses))  # scaled where precision is mixed
        return outputs, losses, tape.gradient(loss, [weight.value for weight in self.model.trainable_variables])

    def losses(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return (batch,) losses."""
        config = self.task.config
        return loss_per_sample(outputs, labels, config=config.optimizer, model_config=config.model)

    def _loss(self, losses: tf.Tensor) -> tf.Tensor:
        """Return the loss of a pass: the mean times the share's factor."""
        mean = tf.reduce_mean(losses)
        return mean if self.share.loss_factor == 1 else mean * self.share.loss_factor

    def end_epoch(self) -> PartialEpoch:
        """Average BatchNorm's statistics over the ranks, which else hold the same weights.

        Returns:
            What this rank alone starts the next epoch with.
        """
        distributed.average_batch_norm(
            self.model, spec=self.spec, config=self.task.config.device, comm=self.comm, weight=self.share.weight
        )
        return self.own_state(self.task.steps_after(self.epoch))

    def rank_state(self) -> Weights:
        """Return sums and seeds of this rank inside an epoch."""
        return {name: np.atleast_1d(variable.numpy()) for name, variable in self._variables().items()}

    def sums(self, samples: int) -> Sums:
        """Return the sums of this rank over so many samples of the epoch, as the weights were at each update."""
        return self._sums.read(samples)

    def evaluate(self, batches: Iterator[Batch]) -> Sums:
        """Return the sums of this rank over the batches, in inference mode."""
        loss, correct, samples = tf.zeros((), tf.float64), tf.zeros((), tf.int64), 0
        for images, labels in batches:
            loss_of_batch, correct_of_batch = self._evaluate_batch(images, labels)
            loss += loss_of_batch
            correct += correct_of_batch
            samples += len(labels)
        return Sums(float(loss), float(correct), samples)

    def _sums_of_batch(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        outputs = self.model(images, training=False)
        losses = self.losses(outputs, labels)
        correct = tf.argmax(outputs, axis=1) == labels
        return tf.reduce_sum(tf.cast(losses, tf.float64)), tf.reduce_sum(tf.cast(correct, tf.int64))

    def synchronize(self) -> None:
        """Wait until the device has done all its work, before a clock is read."""
        distributed.synchronize(self.device)

    def exchanged(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates; None: nothing that can be told."""
        return ring_record(self.task, self.meter.read(), rank=self.comm.rank)

    def _freeze_batch_norm(self, epoch: int) -> None:
        if self.task.freezes_batch_norm_in(epoch) and freeze_batch_norm(self.model):
            self._compile()

    def _variables(self) -> dict[str, Any]:
        """Return the sums and the seeds of the dropout layers, under names of their own."""
        seeds = {layer.name: layer.seed_generator.state for _, layer in seeded_layers(self.model)}
        return {**self.kept(), **seeds, "losses_of_places": self._sums.losses, "correct_of_places": self._sums.correct}

    def _seed_dropout(self) -> None:
        """Give every epoch and rank dropout masks of their own that do not depend on what ran before."""
        for number, layer in seeded_layers(self.model):
            layer.seed_generator.state.assign(self._dropout_seeds(number, rank=self.comm.data_rank))

    def _dropout_seeds(self, layer_number: int, *, rank: int) -> np.ndarray:
        seed, part = self.task.config.training.seed, self.comm.own_part
        return dropout_seeds(seed, epoch=self.epoch, rank=rank, layer=layer_number, part=part)


def seeded_layers(model: keras.Model) -> list[tuple[int, keras.Layer]]:
    """Return the layers that draw random numbers, each with its number in the model."""
    layers = enumerate(model.layers)
    return [(number, layer) for number, layer in layers if getattr(layer, "seed_generator", None) is not None]


def _accumulated(
    one_pass: Callable[[tf.Tensor, tf.Tensor], Gradients], images: tf.Tensor, labels: tf.Tensor, *, passes: int
) -> Gradients:
    """Return outputs and losses of a batch and the sums of the gradients of its passes, which come one by one."""
    parts = [tf.reshape(tensor, (passes, -1, *tensor.shape[1:])) for tensor in (images, labels)]
    first = one_pass(*(part[0] for part in parts))
    arrays = [tf.TensorArray(one.dtype, passes).write(0, one) for one in first[:2]]

    def add(number: Any, outputs: Any, losses: Any, sums: Any) -> Any:
        one = one_pass(*(part[number] for part in parts))
        added = [total + gradient for total, gradient in zip(sums, _dense(one[2]), strict=True)]
        return number + 1, outputs.write(number, one[0]), losses.write(number, one[1]), added

    _, outputs, losses, gradients = tf.while_loop(
        lambda number, *_: number < passes, add, (1, *arrays, _dense(first[2])), parallel_iterations=1
    )
    return outputs.concat(), losses.concat(), gradients


def _dense(gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Return gradients that can be added up, of embeddings too."""
    return [tf.convert_to_tensor(gradient) for gradient in gradients]
