"""The explicit loop of PyTorch: train an epoch in segments, evaluate."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from common.measurement.metrics import Sums
from common.measurement.step_profile import Profiler
from common.measurement.timing import Phases, Timer, timed
from common.model.dropout import dropout_seeds
from common.run_folder.checkpoints import PartialEpoch
from common.training.measured import Measured
from torch_impl.compiling import compile_errors, compiled
from torch_impl.data import Batches, ShardedData
from torch_impl.distributed import synchronize
from torch_impl.optimizers import loss_per_sample
from torch_impl.state import TrainingState
from torch_impl.straggler import planted_slowdown


class Trainer:
    """Trains and evaluates on one rank.

    Args:
        state: model and optimizer, which it changes.
        data: this rank's samples.
        learning_rates: (updates of the run,) one per update; the last one holds for all after it.
        phases: the clock of this rank.

    Attributes:
        epoch: the current one, from 1.
        profiler: the clock of the parts of a step, where they are timed.
    """

    profiler: Profiler | None = None

    def __init__(self, state: TrainingState, data: ShardedData, *, learning_rates: np.ndarray, phases: Phases) -> None:
        self.state = state
        self.data = data
        self.learning_rates = learning_rates
        self.phases = phases
        self.epoch = 0
        self._loss_weight = data.setup.loss_weight(data.comm.data_rank)
        self._gradient: Tensor | None = None
        self._slowdown = planted_slowdown(data, state.model)
        self._precision = _precision(state.config.device.mixed_precision, device=data.device)
        self._compiled = compiled(self._forward) if state.config.model.compile else None

    @property
    def steps_left(self) -> int:
        """Updates of the epoch that remain."""
        return self.data.setup.steps_of_epoch(self.epoch) - self._steps_done

    @property
    def batches_done(self) -> int:
        """Batches of the epoch that this rank has computed: one per update."""
        return self._steps_done

    @property
    def updates_done(self) -> int:
        """Updates of the epoch that are done, also while a segment is trained."""
        return self._steps_done + self._steps_of_segment

    def warm_up(self, epoch: int) -> None:
        """Compute a batch of an epoch and undo it: with `--compile` the first one compiles, which is not training time.

        Raises:
            UserError: it cannot be compiled; on all ranks.
        """
        if not self._compiled:
            return
        self.epoch = epoch
        model = self.state.model
        buffers = [buffer.clone() for buffer in model.buffers()]
        self._train_mode()
        with compile_errors(self.data.comm):
            images, labels = next(self.data.training(epoch))
            passes = self.data.setup.passes
            _, losses = self._compiled(images.chunk(passes)[0], labels.chunk(passes)[0])
            # Not by `backward`, after which Horovod exchanges the gradients.
            torch.autograd.grad(losses, list(model.parameters()), self._loss_gradient(losses))
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)

    def start_epoch(self, epoch: int, partial: PartialEpoch | None = None) -> None:
        """Prepare an epoch: batches, sums, dropout masks, BatchNorm.

        Args:
            epoch: its number, from 1.
            partial: what was done of it before, as `partial_epoch` returned it, with what is this rank's own.
        """
        partial = partial or PartialEpoch()
        if self.data.setup.freezes_batch_norm_in(epoch):
            self.warm_up(epoch)
        self.epoch, self._steps_done, self._steps_of_segment = epoch, partial.steps, 0
        self._seconds, self._waiting = partial.training_seconds, Timer(partial.data_wait_seconds)
        self._batches = timed(self.data.training(epoch, first_step=partial.steps), self._waiting)
        # Sums stay on the device: reading them at every step would make it wait for each. One sum per place in the
        # batch, as all batches have one size: the sum within the batch is taken once, at the end of the epoch.
        places, device = self.data.batch_size, self.data.device
        self._losses_of_places = torch.zeros(places, dtype=torch.float64, device=device)
        self._correct_of_places = torch.zeros(places, dtype=torch.int64, device=device)
        self._seed_dropout()
        self._restore(partial)
        if self._slowdown:
            self._slowdown.start_at(self.data.setup.steps_after(epoch - 1) + partial.steps)

    def train_segment(self, steps: int, *, advance: Callable[[int], object] = lambda steps: None) -> None:
        """Train on the next batches of the epoch.

        Args:
            steps: number of batches.
            advance: called with the number of steps done since the last call, for a progress bar.
        """
        first = self.data.setup.steps_after(self.epoch - 1) + self._steps_done
        with self.phases.phase("training", synchronize=self._synchronize) as segment:
            self._train_mode()
            batches = self._next_batches(steps)
            if self.profiler:
                batches = self.profiler.steps(batches)
            for step, (images, labels) in enumerate(batches, start=first):
                learning_rate = self.learning_rates[min(step, len(self.learning_rates) - 1)]
                outputs, losses = self._step(images, labels, float(learning_rate))
                self._losses_of_places += losses
                self._correct_of_places += outputs.argmax(dim=1) == labels
                self._steps_of_segment += 1
                advance(1)
        self._seconds += segment.seconds
        # Not the batches that were counted: a worker that draws its batches has its own number of them.
        self._steps_done, self._steps_of_segment = self._steps_done + steps, 0

    def result(self) -> Measured:
        """Return the sums of this rank over the epoch so far, as the weights were at each step, and its time.

        On a CPU waiting for data includes making the batches, as no thread makes them ahead.
        """
        samples = self.batches_done * self.data.batch_size
        sums = Sums(float(self._losses_of_places.sum()), float(self._correct_of_places.sum()), samples)
        return Measured(sums=sums, seconds=self._seconds, data_wait_seconds=self._waiting.seconds)

    def partial_epoch(self) -> PartialEpoch:
        """Return what this rank has of the epoch so far, but for weights and optimizer state."""
        state = {name: tensor.cpu().numpy().copy() for name, tensor in self._sums().items()}
        state["generator"] = torch.get_rng_state().numpy()
        if self.data.device.type == "cuda":
            state["device_generator"] = torch.cuda.get_rng_state(self.data.device).numpy()
        return PartialEpoch(
            steps=self._steps_done,
            training_seconds=self._seconds,
            data_wait_seconds=self._waiting.seconds,
            state=state,
        )

    @torch.inference_mode()
    def evaluate(self, part: Literal["validation", "test"]) -> Measured:
        """Return the sums of this rank over its samples, in inference mode, and the time."""
        self.state.model.eval()
        loss = torch.zeros((), dtype=torch.float64, device=self.data.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.data.device)
        samples = 0
        with self.phases.phase(part, synchronize=self._synchronize) as evaluation:
            for images, labels in self.data.evaluation(part):
                outputs, losses = self._forward(images, labels)
                loss += losses.sum(dtype=torch.float64)
                correct += (outputs.argmax(dim=1) == labels).sum()
                samples += len(labels)
        return Measured(sums=Sums(float(loss), float(correct), samples), seconds=evaluation.seconds)

    def _next_batches(self, steps: int) -> Batches:
        return islice(self._batches, steps)

    def _step(self, images: Tensor, labels: Tensor, learning_rate: float) -> tuple[Tensor, Tensor]:
        for group in self.state.optimizer.param_groups:
            group["lr"] = learning_rate
        self.state.optimizer.zero_grad()
        if self._slowdown:
            self._slowdown.start()
        outputs, losses = self._passes(images, labels)
        if self.state.scaler.is_enabled():
            self._scaled_update()
        else:
            self.state.optimizer.step()
        return outputs, losses

    def _passes(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Add up the gradients of the passes of an update; return outputs and losses of its images."""
        passes = self.data.setup.passes
        if passes == 1:
            return self._pass(images, labels)
        parts = [self._pass(*part) for part in zip(images.chunk(passes), labels.chunk(passes), strict=True)]
        outputs, losses = map(torch.cat, zip(*parts, strict=True))
        return outputs, losses

    def _pass(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradients of a batch, or of a part of it, to those that are there; return outputs and losses."""
        outputs, losses = (self._compiled or self._forward)(images, labels)
        losses.backward(self.state.scaler.scale(self._loss_gradient(losses)))
        return outputs.detach(), losses.detach()

    def _loss_gradient(self, losses: Tensor, *, parts: int = 1) -> Tensor:
        """Return the gradient of a pass's loss with respect to its per-sample losses, the same in every step.

        The loss itself, which is not computed, is the mean of the losses: weighted where ranks have batches of other
        sizes or an update has several passes, and divided by the parts of a batch that are computed one by one.
        """
        if self._gradient is None or self._gradient.shape != losses.shape:
            # In the order in which autograd would compute it, for the same weights to the last bit.
            self._gradient = torch.ones_like(losses) / parts * self._loss_weight / len(losses)
        return self._gradient

    def _scaled_update(self) -> None:
        """Average the gradients first, so that an overflow on one rank makes all ranks skip the same step."""
        optimizer: Any = self.state.optimizer
        if hasattr(optimizer, "skip_synchronize"):  # Horovod's
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                self.state.scaler.step(optimizer)
        else:
            self.state.scaler.step(optimizer)
        self.state.scaler.update()

    def _forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with self._precision:
            outputs = self.state.model(images)
        return outputs, self._losses(outputs, labels)

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        config = self.state.config
        return loss_per_sample(outputs, labels, config=config.optimizer, model_config=config.model)

    def _train_mode(self) -> None:
        self.state.model.train()
        if self.data.setup.freezes_batch_norm_in(self.epoch):
            for layer in self.state.model.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.eval()

    def _sums(self) -> dict[str, Tensor]:
        return {"losses_of_places": self._losses_of_places, "correct_of_places": self._correct_of_places}

    def _restore(self, partial: PartialEpoch) -> None:
        """Continue an epoch that was trained in part."""
        if partial.weights or partial.optimizer_state:
            self.state.restore({**self.state.export_weights(), **partial.weights}, partial.optimizer_state)
        if partial.state:
            for name, tensor in self._sums().items():
                tensor.copy_(torch.from_numpy(partial.state[name]))
        if "generator" in partial.state:  # not of a rank that joins in the middle of an epoch
            torch.set_rng_state(torch.from_numpy(partial.state["generator"]))
            if self.data.device.type == "cuda":
                torch.cuda.set_rng_state(torch.from_numpy(partial.state["device_generator"]), self.data.device)

    def _seed_dropout(self) -> None:
        """Give every epoch and rank dropout masks of their own that do not depend on what ran before."""
        seed, comm = self.state.config.training.seed, self.data.comm
        seeds = dropout_seeds(seed, epoch=self.epoch, rank=comm.data_rank, part=comm.own_part)
        torch.manual_seed(int(seeds.view(np.uint64)[0] >> np.uint64(1)))

    def _synchronize(self) -> None:
        synchronize(self.data.device)


def _precision(mixed: str, *, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass: with mixed precision, that of layers in 16 bits."""
    if mixed == "none":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16 if mixed == "bfloat16" else torch.float16)
