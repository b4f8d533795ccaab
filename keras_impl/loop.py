"""The explicit loop of tf.keras: train an epoch in segments, evaluate."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from common.data.batches import Draw, Stacks
from common.measurement.metrics import Sums
from common.measurement.step_profile import Profiler
from common.measurement.timing import Phases, Timer, timed
from common.model.dropout import dropout_seeds
from common.run.measured import Measured
from common.run_folder.checkpoints import PartialEpoch
from common.strategies.rank_batches import MOST_UPDATES
from common.strategies.straggler import slowdown_of
from keras_impl.batch_norm import freeze_batch_norm
from keras_impl.compiling import compile_errors, compiled
from keras_impl.data import Batches, ShardedData
from keras_impl.distributed import synchronize
from keras_impl.optimizers import loss_per_sample
from keras_impl.rehearsal import undone
from keras_impl.state import TrainingState
from keras_impl.straggler import late, timed_from_here


class Trainer:
    """Trains and evaluates on one rank.

    Args:
        state: model and optimizer, which it changes.
        data: this rank's samples.
        phases: the clock of this rank.
        strategy: says what is rehearsed, and what this rank draws; None: one update, and its part of each step.

    Attributes:
        epoch: the current one, from 1.
        batches_done: batches of the epoch that this rank has computed: one per update, unless it draws them.
        profiler: the clock of the parts of a step, where they are timed.
    """

    profiler: Profiler | None = None
    most_updates = MOST_UPDATES  # in one call of a compiled function

    def __init__(self, state: TrainingState, data: ShardedData, *, phases: Phases, strategy: Any = None) -> None:
        self.state = state
        self.data = data
        self.phases = phases
        self.epoch, self.batches_done, self._steps_done = 0, 0, 0
        self._rehearsals: Callable[[], Iterable[None]] = strategy.rehearsals if strategy else lambda: [None]
        self._draw: Draw | None = strategy.draw if strategy else None
        self._iterations_before = int(state.optimizer.iterations.numpy())
        self._loss_factor = data.share.loss_factor
        self._slowdown = slowdown_of(data.task, rank=data.comm.rank)
        # One sum per place in the batch, as all batches have one size: the sum within the batch is taken once, at the
        # end of the epoch.
        self._losses_of_places = tf.Variable(tf.zeros(data.samples, tf.float64), trainable=False)
        self._correct_of_places = tf.Variable(tf.zeros(data.samples, tf.int64), trainable=False)
        self._batch_shape = (data.samples, *data.task.dataset.image_shape)
        images = tf.TensorSpec((None, *data.task.dataset.image_shape), data.task.table.dtype)
        labels = tf.TensorSpec((None,), tf.int64)
        self._evaluate_batch = tf.function(self._sums_of_batch, input_signature=(images, labels), autograph=False)
        self._compile()

    def _compile(self) -> None:
        images = tf.TensorSpec((None, *self._batch_shape), self.data.task.table.dtype)
        labels = tf.TensorSpec((None, self.data.samples), tf.int64)
        self._train_stack = tf.function(self._updates, input_signature=(images, labels), autograph=False)
        self._gradients = compiled(self._pass) if self.state.config.model.compile else self._pass

    @property
    def steps_left(self) -> int:
        """Updates of the epoch that remain."""
        return self.data.task.steps_of_epoch(self.epoch) - self._steps_done

    @property
    def updates_done(self) -> int:
        """Updates of the epoch that are done, also while a segment is trained."""
        iterations = int(self.state.optimizer.iterations.numpy())
        return self._steps_done + max(0, iterations - self._iterations_before)

    def rehearse(self, epoch: int) -> None:
        """Train on the first batch of an epoch and undo it; all ranks call this, before an update is timed.

        Raises:
            UserError: with `--compile`, it cannot be compiled; on all ranks.
        """
        with undone(self.state):
            if self.state.config.model.compile:
                with compile_errors(self.data.comm):  # alone, so that an error ends all ranks before they exchange
                    images, labels = next(self._first_batch(epoch))
                    self._passes(tf.constant(images[0]), tf.constant(labels[0]))
            for _ in self._rehearsals():
                self._train(self._first_batch(epoch), advance=lambda steps: None)

    def rehearse_evaluation(self) -> None:
        """Evaluate a batch of each part, before an evaluation is timed."""
        for batches in (self.data.evaluation("validation"), self.data.evaluation("test")):
            self._evaluate(islice(batches, 1))

    def start_epoch(self, epoch: int, partial: PartialEpoch | None = None) -> None:
        """Prepare an epoch: batches, sums, dropout masks, BatchNorm.

        Args:
            epoch: its number, from 1.
            partial: what was done of it before, as `partial_epoch` returned it, with what is this rank's own.
        """
        partial = partial or PartialEpoch()
        if self.data.task.freezes_batch_norm_in(epoch) and freeze_batch_norm(self.state.model):
            self._compile()
            self.rehearse(epoch)
        self.epoch, self._steps_done = epoch, partial.steps
        self.batches_done = partial.steps if partial.own_steps is None else partial.own_steps
        self._seconds, self._waiting = partial.training_seconds, Timer(partial.data_wait_seconds)
        stacks = self.data.training(epoch, first_step=partial.steps, most=self.most_updates)
        self._stacks = Stacks(timed(stacks, self._waiting))
        self._losses_of_places.assign(tf.zeros_like(self._losses_of_places))
        self._correct_of_places.assign(tf.zeros_like(self._correct_of_places))
        self._seed_dropout()
        self._restore(partial)
        if self._slowdown:
            self._slowdown.start_at(self.data.task.steps_after(epoch - 1) + partial.steps)

    def train_segment(self, steps: int, *, advance: Callable[[int], object] = lambda steps: None) -> None:
        """Train on the next batches of the epoch.

        Args:
            steps: number of batches.
            advance: called with the number of steps done since the last call, for a progress bar.
        """
        self._iterations_before = int(self.state.optimizer.iterations.numpy())
        with self.phases.phase("training", synchronize=self._synchronize) as segment:
            self._train(self._next_stacks(steps), advance=advance)
        self._seconds += segment.seconds
        self._steps_done += steps
        self._iterations_before += steps

    def result(self) -> Measured:
        """Return the sums of this rank over the epoch so far, as the weights were at each step, and its time.

        On a CPU waiting for data includes making the batches, as no thread makes them ahead.
        """
        samples = self.batches_done * self.data.samples
        loss, correct = self._losses_of_places.numpy().sum(), self._correct_of_places.numpy().sum()
        sums = Sums(float(loss), float(correct), samples)
        return Measured(sums=sums, seconds=self._seconds, data_wait_seconds=self._waiting.seconds)

    def partial_epoch(self) -> PartialEpoch:
        """Return what this rank has of the epoch so far, but for weights and optimizer state."""
        return PartialEpoch(
            steps=self._steps_done,
            own_steps=self.batches_done if self._draw else None,
            training_seconds=self._seconds,
            data_wait_seconds=self._waiting.seconds,
            state={name: np.atleast_1d(variable.numpy()) for name, variable in self._variables().items()},
        )

    def evaluate(self, part: Literal["validation", "test"]) -> Measured:
        """Return the sums of this rank over its samples, in inference mode, and the time."""
        with self.phases.phase(part, synchronize=self._synchronize) as evaluation:
            loss, correct, samples = self._evaluate(self.data.evaluation(part))
        return Measured(sums=Sums(float(loss), float(correct), samples), seconds=evaluation.seconds)

    def _evaluate(self, batches: Batches) -> tuple[tf.Tensor, tf.Tensor, int]:
        """Return the sum of the losses, the number of right answers and the number of samples."""
        loss, correct = tf.zeros((), tf.float64), tf.zeros((), tf.int64)
        samples = 0
        for images, labels in batches:
            loss_of_batch, correct_of_batch = self._evaluate_batch(images, labels)
            loss += loss_of_batch
            correct += correct_of_batch
            samples += len(labels)
        return loss, correct, samples

    def _next_stacks(self, steps: int) -> Batches:
        if self._draw is None:
            return self._stacks.take(steps)
        items = self.data.task.drawn_items(self._draw, self.epoch, first_step=self._steps_done, steps=steps)
        return timed(self.data.drawn(self.epoch, items), self._waiting)

    def _first_batch(self, epoch: int) -> Batches:
        return islice(self.data.training(epoch, most=1), 1)

    def _train(self, stacks: Batches, *, advance: Callable[[int], object]) -> None:
        for images, labels in stacks:
            self._train_stack(tf.constant(images), tf.constant(labels))
            self.batches_done += len(labels)
            advance(len(labels))

    def _updates(self, images: tf.Tensor, labels: tf.Tensor) -> None:
        """Make the updates of a stack one after the other, in a graph: a call for each would cost more than some do."""

        def update(number: tf.Tensor) -> tf.Tensor:
            self._step(images[number], labels[number])
            return number + 1

        count = tf.shape(labels)[0]
        tf.while_loop(lambda number: number < count, update, [tf.constant(0)], parallel_iterations=1)

    def _step(self, images: tf.Tensor, labels: tf.Tensor) -> None:
        outputs, losses = self._update(images, labels)
        self._add(outputs, losses, labels)

    def _update(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Update the weights with a batch; return its outputs and losses as they were before."""
        if self._slowdown:
            started, images = timed_from_here(images)
        outputs, losses, gradients = self._passes(images, labels)
        if self._slowdown:
            gradients = late(gradients, self._slowdown, started=started)
        self.state.optimizer.apply(gradients, self.state.model.trainable_variables)
        return outputs, losses

    def _passes(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Return outputs, losses and gradients; in several passes, one after the other, which need less memory."""
        passes = self.data.share.passes
        if passes == 1:
            return self._gradients(images, labels)
        parts = [tf.reshape(tensor, (passes, -1, *tensor.shape[1:])) for tensor in (images, labels)]
        first = self._gradients(*(part[0] for part in parts))
        arrays = [tf.TensorArray(one.dtype, passes).write(0, one) for one in first[:2]]

        def add(number: Any, outputs: Any, losses: Any, sums: Any) -> Any:
            one = self._gradients(*(part[number] for part in parts))
            added = [total + gradient for total, gradient in zip(sums, _dense(one[2]), strict=True)]
            return number + 1, outputs.write(number, one[0]), losses.write(number, one[1]), added

        _, outputs, losses, gradients = tf.while_loop(
            lambda number, *_: number < passes, add, (1, *arrays, _dense(first[2])), parallel_iterations=1
        )
        return outputs.concat(), losses.concat(), gradients

    def _pass(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            outputs, losses = self._forward(images, labels, training=True)
            loss = self.state.optimizer.scale_loss(self._loss(losses))  # scaled where precision is mixed
        return outputs, losses, tape.gradient(loss, [weight.value for weight in self.state.model.trainable_variables])

    def _forward(self, images: tf.Tensor, labels: tf.Tensor, *, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        outputs = self.state.model(images, training=training)
        return outputs, self._losses(outputs, labels)

    def _losses(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        config = self.state.config
        return loss_per_sample(outputs, labels, config=config.optimizer, model_config=config.model)

    def _loss(self, losses: tf.Tensor) -> tf.Tensor:
        """Return the loss of a pass: the mean times the share's factor."""
        mean = tf.reduce_mean(losses)
        return mean if self._loss_factor == 1 else mean * self._loss_factor

    def _add(self, outputs: tf.Tensor, losses: tf.Tensor, labels: tf.Tensor) -> None:
        self._losses_of_places.assign_add(tf.cast(losses, tf.float64))
        self._correct_of_places.assign_add(tf.cast(tf.argmax(outputs, axis=1) == labels, tf.int64))

    def _sums_of_batch(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        outputs, losses = self._forward(images, labels, training=False)
        correct = tf.argmax(outputs, axis=1) == labels
        return tf.reduce_sum(tf.cast(losses, tf.float64)), tf.reduce_sum(tf.cast(correct, tf.int64))

    def _variables(self) -> dict[str, Any]:
        """Return the sums and the seeds of the dropout layers, under names of their own."""
        seeds = {layer.name: layer.seed_generator.state for _, layer in seeded_layers(self.state.model)}
        sums = {"losses_of_places": self._losses_of_places, "correct_of_places": self._correct_of_places}
        return {**seeds, **sums}

    def _restore(self, partial: PartialEpoch) -> None:
        """Continue an epoch that was trained in part."""
        if partial.weights or partial.optimizer_state:
            self.state.restore({**self.state.export_weights(), **partial.weights}, partial.optimizer_state)
        if partial.state:
            for name, variable in self._variables().items():
                if name in partial.state:  # seeds are not of a rank that joins in the middle of an epoch
                    variable.assign(partial.state[name].reshape(variable.shape))

    def _seed_dropout(self) -> None:
        """Give every epoch and rank dropout masks of their own that do not depend on what ran before."""
        for number, layer in seeded_layers(self.state.model):
            layer.seed_generator.state.assign(self._dropout_seeds(number, rank=self.data.comm.data_rank))

    def _dropout_seeds(self, layer_number: int, *, rank: int) -> np.ndarray:
        seed, part = self.state.config.training.seed, self.data.comm.own_part
        return dropout_seeds(seed, epoch=self.epoch, rank=rank, layer=layer_number, part=part)

    def _synchronize(self) -> None:
        synchronize(self.data.device)


def seeded_layers(model: keras.Model) -> list[tuple[int, keras.Layer]]:
    """Return the layers that draw random numbers, each with its number in the model."""
    layers = enumerate(model.layers)
    return [(number, layer) for number, layer in layers if getattr(layer, "seed_generator", None) is not None]


def _dense(gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Return gradients that can be added up, of embeddings too."""
    return [tf.convert_to_tensor(gradient) for gradient in gradients]
