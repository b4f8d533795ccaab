"""Models that several ranks hold together: in stages (`--strategy layers`) or with every layer in pieces (`split`)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from common.data.batches import Draw
from common.distributed.communicator import Communicator
from common.distributed.exchange_meter import ExchangeMeter
from common.pipeline.links import Links
from common.pipeline.schedule import Operation, operations
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import pipeline_record, split_record
from common.task.task import Task
from torch_impl import distributed
from torch_impl.exchange import GroupExchange
from torch_impl.loop import Trainer
from torch_impl.state import TrainingState


class ModelParallel:
    """What both have in common: ranks that hold the same part, of other copies, average their gradients."""

    exchange: GroupExchange | None = None
    trainer_class: Callable[..., Trainer] = Trainer
    draw: Draw | None = None

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        self.task = task
        self.comm = comm
        self.meter = ExchangeMeter()

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Return the model that computes."""
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, *, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer, which first averages the gradients over the copies of the model."""
        self._weights = list(model.parameters())
        optimizer.register_step_pre_hook(self._before_update)
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

    def _before_update(self, *_: Any) -> None:
        self.meter.updates += 1
        if self.comm.part_group is not None:
            gradients = [weight.grad for weight in self._weights if weight.grad is not None]
            averages = distributed.average_gradients(
                gradients, config=self.task.config, group=self.comm.part_group, meter=self.meter
            )
            for gradient, average in zip(gradients, averages, strict=True):
                gradient.copy_(average)


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
        return pipeline_record(self.task, self._links, comm=self.comm, averages=self.meter)


class Split(ModelParallel):
    """Each rank holds a piece of every layer, and computes all batches of its copy of the model."""

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        super().__init__(task, comm=comm)
        self.exchange = GroupExchange(comm, config=task.config, meter=self.meter)

    def sharing(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates."""
        return split_record(self.task, self.meter, comm=self.comm)


class StageTrainer(Trainer):
    """Trains and evaluates one stage of a pipeline.

    Args:
        links: to the stages before and after.
    """

    def __init__(self, *arguments: Any, links: Links, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._links = links
        parts, comm = self.state.config.parts, self.data.comm
        self._operations = operations(
            parts.pipeline_schedule, stage=comm.part, stages=comm.parts, microbatches=parts.microbatches
        )

    def _passes(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the microbatches of an update in the order of the schedule; only the last stage has their losses."""
        count = self.state.config.parts.microbatches
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
        return self._results(results, labels)

    def _forward_pass(
        self, operation: Operation, images: Tensor, labels: Tensor, *, results: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs of this stage, and what its backward pass starts from."""
        inputs = images if self._links.is_first else self._receive(len(images)).requires_grad_()
        outputs = self.state.model(inputs)
        if not self._links.is_last:
            self._links.computed(operation, outputs.detach().cpu().numpy())
            return inputs, outputs
        losses = self._losses(outputs, labels)
        results.append((outputs.detach(), losses.detach()))
        self._links.computed(operation)
        return inputs, losses

    def _backward_pass(self, operation: Operation, inputs: Tensor, outputs: Tensor) -> None:
        if self._links.is_last:
            gradient = self._loss_gradient(outputs)
        else:
            gradient = torch.from_numpy(self._links.receive_gradient(outputs.shape)).to(outputs.device)
        torch.autograd.backward(outputs, gradient)
        sent = None if inputs.grad is None or self._links.is_first else inputs.grad.cpu().numpy()
        self._links.computed(operation, sent)

    def _forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate this stage; only the last one has outputs and losses."""
        inputs = images if self._links.is_first else self._receive(len(images))
        outputs = self.state.model(inputs)
        results = []
        if self._links.is_last:
            results.append((outputs, self._losses(outputs, labels)))
        else:
            self._links.send(outputs.cpu().numpy(), forward=True)
            self._links.finish()
        return self._results(results, labels)

    def _receive(self, samples: int) -> Tensor:
        array = self._links.receive_activations((samples, *self.state.spec.input_shape))
        return torch.from_numpy(array).to(self.data.device)

    def _results(self, results: list[tuple[Tensor, Tensor]], labels: Tensor) -> tuple[Tensor, Tensor]:
        if not results:  # zeros in their place: the sums of this rank do not count
            return torch.zeros(len(labels), 1, device=labels.device), torch.zeros(len(labels), device=labels.device)
        outputs, losses = map(torch.cat, zip(*results, strict=True))
        return outputs, losses
