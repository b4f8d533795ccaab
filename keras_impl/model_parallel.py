"""Models that several ranks hold together: in stages (`--strategy layers`) or with every layer in pieces (`split`)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from common.data.batches import Draw
from common.distributed.communicator import Communicator
from common.pipeline.links import Links
from common.pipeline.schedule import Operation, operations
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import pipeline_record, split_record
from common.task.task import Task
from keras_impl import distributed
from keras_impl.exchange import GroupExchange
from keras_impl.exchange_meter import ExchangeMeter
from keras_impl.loop import Trainer
from keras_impl.pipeline import GraphLinks
from keras_impl.state import TrainingState


class ModelParallel:
    """What both have in common: ranks that hold the same part, of other copies, average their gradients."""

    exchange: GroupExchange | None = None
    trainer_class: Callable[..., Trainer] = Trainer
    draw: Draw | None = None

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        self.task = task
        self.comm = comm
        self.meter = ExchangeMeter()

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which model and optimizer are built."""
        return nullcontext()

    def wrap_optimizer(
        self, optimizer: keras.optimizers.Optimizer, *, model: keras.Model
    ) -> keras.optimizers.Optimizer:
        """Return the optimizer, which first averages the gradients over the copies of the model."""
        optimizer.apply = self.meter.counting(partial(self._update, optimizer.apply))  # Keras has no hooks for this
        return optimizer

    def broadcast_state(self, state: TrainingState) -> None:
        """Give the ranks that hold the same part the weights and the optimizer state of the first copy."""
        distributed.broadcast_state(state, comm=self.comm)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self.meter.undone():
            yield

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Average BatchNorm's statistics over the copies, the only weights that are each rank's own."""
        distributed.average_batch_norm(state, comm=self.comm)
        return PartialEpoch()

    def _update(self, apply: Any, gradients: Sequence[tf.Tensor], weights: Sequence[Any]) -> None:
        if self.comm.part_group is not None:
            gradients = distributed.average_gradients(
                gradients, config=self.task.config, group=self.comm.part_group, meter=self.meter
            )
        apply(gradients, weights)


class Layers(ModelParallel):
    """Each rank holds consecutive layers: microbatches go through the ranks, and their gradients back."""

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        super().__init__(task, comm=comm)
        self._links = Links(comm, dtype=task.config.model.dtype)
        self.trainer_class = partial(StageTrainer, links=self._links)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self._links.meter.undone():
            yield from super().rehearsals()

    def sharing(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates."""
        return pipeline_record(self.task, self._links, comm=self.comm, averages=self.meter.read())


class Split(ModelParallel):
    """Each rank holds a piece of every layer, and computes all batches of its copy of the model."""

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        super().__init__(task, comm=comm)
        self.exchange = GroupExchange(comm, config=task.config, meter=self.meter)

    def sharing(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates."""
        return split_record(self.task, self.meter.read(), comm=self.comm)


class StageTrainer(Trainer):
    """Trains and evaluates one stage of a pipeline.

    Args:
        links: to the stages before and after.
    """

    def __init__(self, *arguments: Any, links: Links, **named: Any) -> None:
        self._links = links
        super().__init__(*arguments, **named)

    def _passes(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Compute the microbatches of an update in the order of the schedule; only the last stage has their losses."""
        parts, comm = self.state.config.parts, self.data.comm
        count = parts.microbatches
        order = operations(parts.pipeline_schedule, stage=comm.part, stages=comm.parts, microbatches=count)
        batches = list(zip(tf.split(images, count), tf.split(labels, count), strict=True))
        held: dict[int, _Pass] = {}
        results: list[tuple[tf.Tensor, tf.Tensor]] = []
        gradients: list[tf.Tensor] = []
        links = self._graph_links()
        links.start(images)
        for operation in order:
            if operation.is_forward:
                held[operation.microbatch] = self._forward_pass(
                    operation, *batches[operation.microbatch], links=links, results=results
                )
            else:
                own = self._backward_pass(operation, *held.pop(operation.microbatch), links=links)
                gradients = [tf.add_n(pair) for pair in zip(gradients, own, strict=True)] if gradients else own
                links.wait_for(gradients)  # or those of all microbatches would be in memory at once
        gradients = links.finish(*gradients)
        if not results:  # zeros in their place: the sums of this rank do not count
            return tf.zeros((labels.shape[0], 1), images.dtype), tf.zeros(labels.shape[0], images.dtype), gradients
        outputs, losses = (tf.concat(parts, axis=0) for parts in zip(*results, strict=True))
        return outputs, losses, gradients

    def _forward_pass(
        self,
        operation: Operation,
        images: tf.Tensor,
        labels: tf.Tensor,
        *,
        links: GraphLinks,
        results: list[tuple[tf.Tensor, tf.Tensor]],
    ) -> "_Pass":
        """Return the inputs of this stage, what its backward pass starts from, and how these follow from each other."""
        with tf.GradientTape() as tape:
            if self._links.is_first:
                inputs = links.now(images)
            else:
                inputs = links.receive_activations(images.shape[0], self._input_shape())
                tape.watch(inputs)
            outputs = self.state.model(inputs, training=True)
            if self._links.is_last:
                losses = self._losses(outputs, labels)
                results.append((outputs, losses))
                end = self._loss(losses)
            else:
                end = outputs
        links.computed(operation, None if self._links.is_last else outputs, after=[end])
        return inputs, end, tape

    def _backward_pass(
        self, operation: Operation, inputs: tf.Tensor, end: tf.Tensor, tape: tf.GradientTape, *, links: GraphLinks
    ) -> list[tf.Tensor]:
        """Return the gradients of this stage's weights."""
        of_end = None if self._links.is_last else links.receive_gradient(end)
        weights = [weight.value for weight in self.state.model.trainable_variables]
        of_inputs, *gradients = tape.gradient(end, [inputs, *weights], output_gradients=of_end)
        links.computed(operation, None if self._links.is_first else of_inputs, after=gradients)
        return gradients

    def _sums_of_batch(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Evaluate this stage; only the last one has losses."""
        links = self._graph_links()
        inputs = images
        if not self._links.is_first:
            inputs = links.receive_activations(tf.shape(images)[0], self._input_shape())
        if self._links.is_last:
            return super()._sums_of_batch(inputs, labels)
        links.send_activations(self.state.model(inputs, training=False))
        loss, correct = links.finish(tf.zeros((), tf.float64), tf.zeros((), tf.int64))
        return loss, correct

    def _graph_links(self) -> GraphLinks:
        return GraphLinks(self._links, dtype=self.state.config.model.dtype)

    def _input_shape(self) -> tuple[int, ...]:
        """Return the shape of this stage's inputs, the channels last."""
        channels, *sides = self.state.spec.input_shape
        return (*sides, channels)


_Pass = tuple[tf.Tensor, tf.Tensor, tf.GradientTape]
