"""`compile`, `fit` and `evaluate` of Keras: train an epoch, evaluate."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from common.config import Config
from common.measurement.metrics import Sums
from common.measurement.step_profile import Profiler
from common.measurement.timing import Phases
from common.model.weights import Weights
from common.run_folder.checkpoints import EpochProgress
from keras_impl.batch_norm import BatchNormalization
from keras_impl.distributed import synchronize
from keras_impl.distributed_optimizer import check_compiled_model
from keras_impl.optimizers import build_loss

STEPS_PER_EXECUTION = 16  # updates that Keras runs in one call of TensorFlow
NOT_BEGUN = EpochProgress()


class Trainer:
    """A compiled model."""

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        *,
        config: Config,
        phases: Phases,
        distributed: bool,
    ) -> None:
        self.model = model
        self.phases = phases
        self.profiler: Profiler | None = None
        model.compile(
            optimizer=optimizer,
            loss=build_loss(config.optimizer, config.model),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            steps_per_execution=STEPS_PER_EXECUTION,
            jit_compile=False,  # Horovod's operations are no XLA operations
            auto_scale_loss=False,  # the optimizer scales the loss itself where precision is mixed
        )
        if distributed:
            check_compiled_model(model)
        self._build_steps()

    def _build_steps(self) -> None:
        self._steps = _Steps(self.model)
        self.model.train_function = self._steps  # what `fit` calls in place of a function of its own

    def freeze_batch_norm(self, batches: tf.data.Dataset) -> None:
        """From now on BatchNorm normalises with its running statistics in training, too, and they stay as they are.

        Args:
            batches: one of them warms up the graph, which is built anew.
        """
        layers = [layer for layer in self.model.layers if isinstance(layer, BatchNormalization)]
        if not all(layer.frozen for layer in layers):
            for layer in layers:
                layer.frozen = True
            self._build_steps()
            self.warm_up(batches)

    def warm_up(self, batches: tf.data.Dataset) -> None:
        """Train on one batch and take it back: the first call builds the graph, which is no training time."""
        variables = [*self.model.variables, *self.model.optimizer.variables]
        before = [variable.numpy() for variable in variables]
        self._train(batches.take(1), epoch=1, advance=lambda _: None, parts=[1], state={})
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)

    def train_epoch(
        self,
        batches: tf.data.Dataset,
        *,
        epoch: int,
        advance: Callable[[int], object],
        parts: Iterable[int] | None = None,
        begun: EpochProgress = NOT_BEGUN,
    ) -> tuple[Sums, float, float]:
        """Train on the batches of one epoch, or on those that are left of it.

        Args:
            batches: images (batch, height, width, channels), labels (batch,) int64.
            epoch: its number, from 1.
            advance: told of every step, for a bar.
            parts: numbers of steps, each asked for when those before are done; None: all are one part.
            begun: what was done of the epoch before, as `progress` returned it.

        Returns:
            Sums of this rank over the epoch (as the weights were at each step), seconds of training, and the part of
            them spent waiting for data.
        """
        steps = int(batches.cardinality())
        self._waited_before = begun.data_wait_seconds
        with self.phases.phase("training", synchronize=synchronize, before=begun.training_seconds) as self._training:
            loss, accuracy = self._train(
                batches, epoch=epoch, advance=advance, parts=parts or [steps], state=begun.state
            )
        samples = (begun.steps + steps) * batches.element_spec[1].shape[0]
        return _sums(loss, accuracy, samples), self._training.seconds, self._waited_before + self._waiting_seconds()

    def progress(self) -> EpochProgress:
        """Return what this rank has of the epoch that lasts, between two parts of it, in a pause of the training."""
        return EpochProgress(
            training_seconds=self._training.seconds,
            data_wait_seconds=self._waited_before + self._waiting_seconds(),
            state={name: np.atleast_1d(variable.numpy()) for name, variable in self._state_variables().items()},
        )

    def _restore(self, state: Weights) -> None:
        """Put back what stands in `EpochProgress.state`; nothing where an epoch begins."""
        if state:
            for name, variable in self._state_variables().items():
                variable.assign(state[name].reshape(variable.shape))

    def _state_variables(self) -> dict[str, keras.Variable]:
        """Return the sums of loss and accuracy, and the seeds of the dropout layers, under names of their own."""
        seeds = {layer.name: layer.seed_generator.state for layer in self.model.layers if _has_seed(layer)}
        sums = {f"metric{number}": variable for number, variable in enumerate(self._metric_variables())}
        return {**seeds, **sums}

    def _metric_variables(self) -> list[keras.Variable]:
        variables: list[keras.Variable] = self.model.metrics_variables
        return variables

    def _waiting_seconds(self) -> float:
        return self._steps.waiting_seconds()

    def _train(
        self,
        batches: tf.data.Dataset,
        *,
        epoch: int,
        advance: Callable[[int], object],
        parts: Iterable[int],
        state: Weights,
    ) -> tuple[float, float]:
        """Train on all batches; return mean loss and accuracy of the epoch.

        Args:
            batches: as for `train_epoch`.
            epoch: the same.
            advance: the same.
            parts: the same.
            state: `EpochProgress.state`.
        """
        self._steps.begin(int(batches.cardinality()), parts=parts)
        # `fit` begins with sums of nothing: what is put back comes after that.
        restore = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: self._restore(state))
        logs = self.model.fit(batches, initial_epoch=epoch - 1, epochs=epoch, verbose=0, shuffle=False,
                              callbacks=[restore, _Counter(advance)]).history  # fmt: skip
        return logs["loss"][0], logs["accuracy"][0]

    def evaluate(
        self, batches: tf.data.Dataset, *, phase: Literal["validation", "test"], samples: int
    ) -> tuple[Sums, float]:
        """Return the sums of this rank over the batches of `samples` samples, in inference mode, and the seconds."""
        with self.phases.phase(phase, synchronize=synchronize) as evaluation:
            # Keras refuses to evaluate nothing.
            logs = self.model.evaluate(batches, verbose=0, return_dict=True) if samples else {"loss": 0, "accuracy": 0}
        return _sums(logs["loss"], logs["accuracy"], samples), evaluation.seconds


class _Steps:
    """What `fit` calls to train some steps: Keras' own `train_step`, and how long each had to wait for its batch.

    Keras' own loop asks for a batch while the step before is still computed, as far as there are threads for both: a
    clock around that would count computing as waiting. Here a step asks when the one before has made its update.
    """

    def __init__(self, model: keras.Model) -> None:
        step = tf.autograph.experimental.do_not_convert(model.train_step)
        self._left = 0
        self._parts: Iterator[int] = iter(())
        self._left_of_part = 0
        self._waiting = tf.Variable(0.0, dtype=tf.float64, trainable=False)

        @tf.function
        def train(batches: tf.data.Iterator, steps: tf.Tensor) -> dict[str, tf.Tensor]:
            for _ in tf.range(steps):
                # TensorFlow keeps no order between a clock and anything else; reading what a step writes waits for its
                # end. (The optimizer's count of updates will not do: it is raised before them.)
                written = [*model.trainable_variables, *model.metrics_variables]
                with tf.control_dependencies([variable.value.read_value() for variable in written]):
                    asked = tf.timestamp()
                with tf.control_dependencies([asked]):
                    batch = next(batches)
                with tf.control_dependencies(batch):
                    waited = self._waiting.assign_add(tf.timestamp() - asked)
                with tf.control_dependencies(
                    [waited]
                ):  # else a single thread may compute first and read the clock then
                    step(tuple(tf.identity(tensor) for tensor in batch))
            return model.get_metrics_result()

        self._train = train

    def begin(self, steps: int, *, parts: Iterable[int]) -> None:
        """Begin an epoch of so many steps, in parts."""
        self._left = steps
        self._parts = iter(parts)
        self._left_of_part = 0
        self._waiting.assign(0.0)

    def __call__(self, batches: tf.data.Iterator) -> dict[str, tf.Tensor]:
        """Train on the next batches, as many as fit in one call; return the metrics so far."""
        left = min(STEPS_PER_EXECUTION, self._left)
        self._left -= left
        metrics: dict[str, tf.Tensor] = {}
        while left:
            self._left_of_part = self._left_of_part or next(self._parts)
            steps = min(left, self._left_of_part)
            metrics = self._train(batches, tf.constant(steps))
            self._left_of_part -= steps
            left -= steps
        if not self._left:
            next(self._parts, None)  # whoever gave the parts takes their times
        return metrics

    def waiting_seconds(self) -> float:
        """Return the seconds that the steps of this epoch have waited for their batches."""
        return float(self._waiting.numpy())


class _Counter(keras.callbacks.Callback):
    """Tells a bar how far an epoch is."""

    def __init__(self, advance: Callable[[int], object]) -> None:
        super().__init__()
        self._advance = advance
        self._done = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """`batch` is the number of the last step done, from 0."""
        self._advance(batch + 1 - self._done)
        self._done = batch + 1


def _sums(mean_loss: float, accuracy: float, samples: int) -> Sums:
    # Keras gives means over samples; right answers are whole numbers.
    return Sums(float(mean_loss) * samples, round(float(accuracy) * samples), samples)


def seed_dropout(model: keras.Model, *, seed: int, epoch: int, rank: int) -> None:
    """Give every epoch and rank dropout masks of their own that do not depend on what ran before."""
    for number, layer in enumerate(model.layers):
        if _has_seed(layer):
            seeds = np.random.SeedSequence([seed, epoch, rank, number]).generate_state(2, np.uint32)
            layer.seed_generator.state.assign(seeds)


def _has_seed(layer: keras.Layer) -> bool:
    return getattr(layer, "seed_generator", None) is not None
