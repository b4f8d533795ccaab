"""`--strategy layers`: each rank holds consecutive layers, one stage of a pipeline."""

from collections.abc import Iterator

import torch
from torch import Tensor

from common.distributed.communicator import Communicator
from common.pipeline.links import Links
from common.pipeline.schedule import Operation, operations
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import pipeline_record
from common.task.task import Task
from torch_impl.data import layout_of
from torch_impl.strategies.model_parallel import ModelParallel


class Layers(ModelParallel):
    """Microbatches go through the ranks, and their gradients back."""

    def __init__(self, task: Task, *, comm: Communicator, device: torch.device) -> None:
        super().__init__(task, comm=comm, device=device)
        self._links, parts = Links(comm, dtype=task.config.model.dtype), task.config.parts
        self._operations = operations(
            parts.pipeline_schedule, stage=comm.part, stages=comm.parts, microbatches=parts.microbatches
        )

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self._links.meter.undone():
            yield from super().rehearsals()

    def passes(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the microbatches of an update in the order of the schedule; only the last stage has their losses."""
        count = self.config.parts.microbatches
        batches = list(zip(images.chunk(count), labels.chunk(count), strict=True))
        held: dict[int, tuple[Tensor, Tensor]] = {}
        results: list[tuple[Tensor, Tensor]] = []
        self._links.start()
        for operation in self._operations:
            if operation.is_forward:
                inputs, outputs = self._forward_pass(operation, *batches[operation.microbatch], results=results)
                held[operation.microbatch] = inputs, outputs
            else:
                self._backward_pass(operation, *held.pop(operation.microbatch))
        self._links.finish()
        return _joined(results, labels)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate this stage; only the last one has outputs and losses."""
        inputs = images if self._links.is_first else self._receive(len(images))
        outputs = self.model(inputs)
        results = []
        if self._links.is_last:
            results.append((outputs, self.losses(outputs, labels)))
        else:
            self._links.send(outputs.cpu().numpy(), forward=True)
            self._links.finish()
        return _joined(results, labels)

    def exchanged(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates."""
        return pipeline_record(self.task, self._links, comm=self.comm, averages=self.meter)

    def _forward_pass(
        self, operation: Operation, images: Tensor, labels: Tensor, *, results: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs of this stage, and what its backward pass starts from."""
        inputs = images if self._links.is_first else self._receive(len(images)).requires_grad_()
        outputs = self.model(inputs)
        if not self._links.is_last:
            self._links.computed(operation, outputs.detach().cpu().numpy())
            return inputs, outputs
        losses = self.losses(outputs, labels)
        results.append((outputs.detach(), losses.detach()))
        self._links.computed(operation)
        return inputs, losses

    def _backward_pass(self, operation: Operation, inputs: Tensor, outputs: Tensor) -> None:
        if self._links.is_last:
            gradient = self.loss_gradient(outputs)
        else:
            gradient = torch.from_numpy(self._links.receive_gradient(outputs.shape)).to(outputs.device)
        torch.autograd.backward(outputs, gradient)
        sent = None if inputs.grad is None or self._links.is_first else inputs.grad.cpu().numpy()
        self._links.computed(operation, sent)

    def _receive(self, samples: int) -> Tensor:
        received = torch.from_numpy(self._links.receive_activations((samples, *self.spec.input_shape)))
        layout = layout_of(self.config.device) if received.dim() == 4 else torch.contiguous_format
        return received.to(self.device, memory_format=layout)


def _joined(results: list[tuple[Tensor, Tensor]], labels: Tensor) -> tuple[Tensor, Tensor]:
    if not results:  # zeros in their place: the sums of this rank do not count
        return torch.zeros(len(labels), 1, device=labels.device), torch.zeros(len(labels), device=labels.device)
    outputs, losses = map(torch.cat, zip(*results, strict=True))
    return outputs, losses
