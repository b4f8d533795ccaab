"""`--strategy layers`: each rank holds consecutive layers; microbatches go through the ranks, and gradients back."""

from collections.abc import Iterator

import tensorflow as tf

from common.distributed.communicator import Communicator
from common.pipeline.links import Links
from common.pipeline.schedule import Operation, operations
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import pipeline_record
from common.task.task import Task
from keras_impl.pipeline import GraphLinks
from keras_impl.strategies.model_parallel import ModelParallel
from keras_impl.strategies.strategy import Gradients


class Layers(ModelParallel):
    """One stage of a pipeline."""

    def __init__(self, task: Task, *, comm: Communicator, device: str) -> None:
        super().__init__(task, comm=comm, device=device)
        self._links = Links(comm, dtype=task.config.model.dtype)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self._links.meter.undone():
            yield from super().rehearsals()

    def exchanged(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates."""
        return pipeline_record(self.task, self._links, comm=self.comm, averages=self.meter.read())

    def passes(self, images: tf.Tensor, labels: tf.Tensor) -> Gradients:
        """Compute the microbatches of an update in the order of the schedule; only the last stage has their losses."""
        parts, comm = self.task.config.parts, self.comm
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
            outputs = self.model(inputs, training=True)
            if self._links.is_last:
                losses = self.losses(outputs, labels)
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
        weights = [weight.value for weight in self.model.trainable_variables]
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
        links.send_activations(self.model(inputs, training=False))
        loss, correct = links.finish(tf.zeros((), tf.float64), tf.zeros((), tf.int64))
        return loss, correct

    def _graph_links(self) -> GraphLinks:
        return GraphLinks(self._links, dtype=self.task.config.model.dtype)

    def _input_shape(self) -> tuple[int, ...]:
        """Return the shape of this stage's inputs, the channels last."""
        channels, *sides = self.spec.input_shape
        return (*sides, channels)


_Pass = tuple[tf.Tensor, tf.Tensor, tf.GradientTape]
