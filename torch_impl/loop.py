"""The explicit loop of PyTorch: train an epoch in segments, evaluate."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from common.data.batches import Draw
from common.measurement.metrics import Sums
from common.measurement.step_profile import Profiler
from common.measurement.timing import Phases, Timer, timed
from common.model.dropout import dropout_seeds
from common.run.measured import Measured
from common.run_folder.checkpoints import PartialEpoch
from torch_impl.compiling import compile_errors, compiled
from torch_impl.data import Batches, ShardedData
from torch_impl.distributed import synchronize
from torch_impl.optimizers import loss_per_sample
from torch_impl.rehearsal import undone
from torch_impl.state import TrainingState
from torch_impl.straggler import planted_slowdown


class Trainer:
    """Trains and evaluates on one rank.

    Args:
        state: model and optimizer, which it changes.
        data: this rank's samples.
        learning_rates: (updates of the run,) one per update; the last one holds for all after it.
        phases: the clock of this rank.
        strategy: says what is rehearsed, and what this rank draws; None: one update, and its part of each step.

    Attributes:
        epoch: the current one, from 1.
        batches_done: batches of the epoch that this rank has computed: one per update, unless it draws them.
        profiler: the clock of the parts of a step, where they are timed.
    """

    profiler: Profiler | None = None

    def __init__(
        self,
        state: TrainingState,
        data: ShardedData,
        *,
        learning_rates: np.ndarray,
        phases: Phases,
        strategy: Any = None,
    ) -> None:
        self.state = state
        self.data = data
        self.learning_rates = learning_rates
        self.phases = phases
        self.epoch, self.batches_done, self._steps_done, self._steps_of_segment = 0, 0, 0, 0
        self._rehearsals: Callable[[], Iterable[None]] = strategy.rehearsals if strategy else lambda: [None]
        self._draw: Draw | None = strategy.draw if strategy else None
        self._loss_factor = data.share.loss_factor
        self._gradient: Tensor | None = None
        self._slowdown = planted_slowdown(data, state.model)
        self._precision = _precision(state.config.device.mixed_precision, device=data.device)
        self._compiled = compiled(self._forward) if state.config.model.compile else None

    @property
    def steps_left(self) -> int:
        """Updates of the epoch that remain."""
        return self.data.task.steps_of_epoch(self.epoch) - self._steps_done

    @property
    def updates_done(self) -> int:
        """Updates of the epoch that are done, also while a segment is trained."""
        return self._steps_done + self._steps_of_segment

    def rehearse(self, epoch: int) -> None:
        """Train on the first batch of an epoch and undo it; all ranks call this, before an update is timed.

        Raises:
            UserError: with `--compile`, it cannot be compiled; on all ranks.
        """
        with undone(self.state):
            if self._compiled:
                with compile_errors(self.data.comm):  # alone, so that an error ends all ranks before they exchange
                    self._compile_passes(epoch)
            for _ in self._rehearsals():
                self._reset_sums()
                self._train(islice(self.data.training(epoch), 1), epoch=epoch, first=0, advance=lambda steps: None)
        self._steps_of_segment = 0

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
        if self.data.task.freezes_batch_norm_in(epoch) and not self.data.task.freezes_batch_norm_in(epoch - 1):
            self.rehearse(epoch)
        self.epoch, self._steps_done, self._steps_of_segment = epoch, partial.steps, 0
        self.batches_done = partial.steps if partial.own_steps is None else partial.own_steps
        self._seconds, self._waiting = partial.training_seconds, Timer(partial.data_wait_seconds)
        self._batches = timed(self.data.training(epoch, first_step=partial.steps), self._waiting)
        self._reset_sums()
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
        first = self.data.task.steps_after(self.epoch - 1) + self._steps_done
        with self.phases.phase("training", synchronize=self._synchronize) as segment:
            self._train(self._next_batches(steps), epoch=self.epoch, first=first, advance=advance)
        self._seconds += segment.seconds
        # Not the batches: a worker that draws them has its own number.
        self._steps_done, self._steps_of_segment = self._steps_done + steps, 0

    def result(self) -> Measured:
        """Return the sums of this rank over the epoch so far, as the weights were at each step, and its time.

        On a CPU waiting for data includes making the batches, as no thread makes them ahead.
        """
        samples = self.batches_done * self.data.samples
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
            own_steps=self.batches_done if self._draw else None,
            training_seconds=self._seconds,
            data_wait_seconds=self._waiting.seconds,
            state=state,
        )

    def evaluate(self, part: Literal["validation", "test"]) -> Measured:
        """Return the sums of this rank over its samples, in inference mode, and the time."""
        with self.phases.phase(part, synchronize=self._synchronize) as evaluation:
            loss, correct, samples = self._evaluate(self.data.evaluation(part))
        return Measured(sums=Sums(float(loss), float(correct), samples), seconds=evaluation.seconds)

    @torch.inference_mode()
    def _evaluate(self, batches: Batches) -> tuple[Tensor, Tensor, int]:
        """Return the sum of the losses, the number of right answers and the number of samples."""
        self.state.model.eval()
        loss = torch.zeros((), dtype=torch.float64, device=self.data.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.data.device)
        samples = 0
        for images, labels in batches:
            outputs, losses = self._forward(images, labels)
            loss += losses.sum(dtype=torch.float64)
            correct += (outputs.argmax(dim=1) == labels).sum()
            samples += len(labels)
        return loss, correct, samples

    def _train(self, batches: Batches, *, epoch: int, first: int, advance: Callable[[int], object]) -> None:
        """Train on batches of an epoch, of which the first belongs to this update of the run, counted from 0."""
        self._train_mode(epoch)
        if self.profiler:
            batches = self.profiler.steps(batches)
        for step, (images, labels) in enumerate(batches, start=first):
            learning_rate = self.learning_rates[min(step, len(self.learning_rates) - 1)]
            outputs, losses = self._step(images, labels, float(learning_rate))
            self._losses_of_places += losses
            self._correct_of_places += outputs.argmax(dim=1) == labels
            self.batches_done += 1
            self._steps_of_segment += 1
            advance(1)

    def _compile_passes(self, epoch: int) -> None:
        """Compile both passes; not by `backward`, after which Horovod exchanges the gradients."""
        self._train_mode(epoch)
        images, labels = next(self.data.training(epoch))
        passes = self.data.share.passes
        assert self._compiled
        _, losses = self._compiled(images.chunk(passes)[0], labels.chunk(passes)[0])
        torch.autograd.grad(losses, list(self.state.model.parameters()), self._loss_gradient(losses))

    def _reset_sums(self) -> None:
        # Sums stay on the device: reading them at every step would make it wait for each. One sum per place in the
        # batch, as all batches have one size: the sum within the batch is taken once, at the end of the epoch.
        places, device = self.data.samples, self.data.device
        self._losses_of_places = torch.zeros(places, dtype=torch.float64, device=device)
        self._correct_of_places = torch.zeros(places, dtype=torch.int64, device=device)

    def _next_batches(self, steps: int) -> Batches:
        if self._draw is None:
            return islice(self._batches, steps)
        items = self.data.task.drawn_items(self._draw, self.epoch, first_step=self._steps_done, steps=steps)
        return timed(self.data.drawn(self.epoch, items), self._waiting)

    def _step(self, images: Tensor, labels: Tensor, learning_rate: float) -> tuple[Tensor, Tensor]:
        for group in self.state.optimizer.param_groups:
            group["lr"] = learning_rate
        self.state.optimizer.zero_grad()
        if self._slowdown:
            self._slowdown.start()
        outputs, losses = self._passes(images, labels)
        if self.state.scaler.is_enabled():
            _scaled_update(self.state)
        else:
            self.state.optimizer.step()
        return outputs, losses

    def _passes(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Add up the gradients of the passes of an update; return outputs and losses of its images."""
        passes = self.data.share.passes
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

    def _loss_gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient of a pass's loss with respect to its per-sample losses, the same in every step.

        The loss itself, which is not computed, is the mean of the losses times the share's factor.
        """
        if self._gradient is None or self._gradient.shape != losses.shape:
            # In the order in which autograd would compute it, for the same weights to the last bit.
            self._gradient = torch.ones_like(losses) * self._loss_factor / len(losses)
        return self._gradient

    def _forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with self._precision:
            outputs = self.state.model(images)
        return outputs, self._losses(outputs, labels)

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        config = self.state.config
        return loss_per_sample(outputs, labels, config=config.optimizer, model_config=config.model)

    def _train_mode(self, epoch: int) -> None:
        self.state.model.train()
        if self.data.task.freezes_batch_norm_in(epoch):
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


def _scaled_update(state: TrainingState) -> None:
    """Average the gradients first, so that an overflow on one rank makes all ranks skip the same step."""
    optimizer: Any = state.optimizer
    if hasattr(optimizer, "skip_synchronize"):  # Horovod's
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            state.scaler.step(optimizer)
    else:
        state.scaler.step(optimizer)
    state.scaler.update()


def _precision(mixed: str, *, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass: with mixed precision, that of layers in 16 bits."""
    if mixed == "none":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16 if mixed == "bfloat16" else torch.float16)
