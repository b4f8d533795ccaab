"""The explicit loop of PyTorch: train an epoch, evaluate."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from common.config import INITIAL_LOSS_SCALE, LOSS_SCALE_GROWTH_STEPS, Config
from common.measurement.metrics import Sums
from common.measurement.step_profile import Profiler
from common.measurement.timing import Phases, Timer, timed
from common.model.weights import Weights
from common.run_folder.checkpoints import EpochProgress
from torch_impl.distributed import synchronize
from torch_impl.optimizers import loss_per_sample

Batches = Iterator[tuple[Tensor, Tensor]]
NOT_BEGUN = EpochProgress()


class Trainer:
    """Holds what a step needs: model, optimizer, settings, device."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        config: Config,
        device: torch.device,
        phases: Phases,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.device = device
        self.phases = phases
        self.profiler: Profiler | None = None
        self.frozen_layers: list[nn.Module] = []
        self.scaler = torch.amp.GradScaler(
            device.type,
            init_scale=INITIAL_LOSS_SCALE,
            growth_interval=LOSS_SCALE_GROWTH_STEPS,
            enabled=config.device.mixed_precision,
        )

    def freeze_batch_norm(self) -> None:
        """From now on BatchNorm normalises with its running statistics in training, too, and they stay as they are."""
        self.frozen_layers = [layer for layer in self.model.modules() if isinstance(layer, nn.BatchNorm2d)]

    def train_epoch(
        self,
        batches: Batches,
        *,
        learning_rates: np.ndarray,
        advance: Callable[[int], object],
        parts: Iterable[int] | None = None,
        begun: EpochProgress = NOT_BEGUN,
    ) -> tuple[Sums, float, float]:
        """Train on the batches of one epoch, or on those that are left of it.

        Args:
            batches: images (batch, channels, height, width), labels (batch,) int64, on the device.
            learning_rates: (steps,), one for each batch.
            advance: told of every step, for a bar.
            parts: numbers of steps, each asked for when those before are done; None: all are one part.
            begun: what was done of the epoch before, as `progress` returned it.

        Returns:
            Sums of this rank over the epoch (as the weights were at each step), seconds of training, and the part of
            them spent waiting for data (on a CPU: making them, as no thread makes them ahead).
        """
        self.model.train()
        for layer in self.frozen_layers:
            layer.eval()
        # Sums stay on the device: reading them at every step would make it wait for each. One sum for each place in the
        # batch, as all batches have one size: adding up within the batch is left for the end of the epoch.
        batch_size = self.config.training.batch_size
        losses_of_places = torch.zeros(batch_size, dtype=torch.float64, device=self.device)
        correct_of_places = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        self._sums = {"losses_of_places": losses_of_places, "correct_of_places": correct_of_places}
        self._restore(begun.state)
        self._waiting = Timer(begun.data_wait_seconds)
        batches, rates = timed(batches, self._waiting), iter(learning_rates)
        with self.phases.phase(
            "training", synchronize=self._synchronize, before=begun.training_seconds
        ) as self._training:
            for steps in parts or [len(learning_rates)]:
                part: Batches = islice(batches, steps)
                if self.profiler:
                    part = self.profiler.steps(part)
                for learning_rate, (images, labels) in zip(islice(rates, steps), part, strict=True):
                    outputs, losses = self._step(images, labels, float(learning_rate))
                    losses_of_places += losses
                    correct_of_places += outputs.argmax(dim=1) == labels
                    advance(1)
        samples = batch_size * (begun.steps + len(learning_rates))
        sums = Sums(float(losses_of_places.sum()), float(correct_of_places.sum()), samples)
        return sums, self._training.seconds, self._waiting.seconds

    def progress(self) -> EpochProgress:
        """Return what this rank has of the epoch that lasts, between two parts of it, in a pause of the training."""
        state = {name: tensor.cpu().numpy().copy() for name, tensor in self._sums.items()}
        state["generator"] = torch.get_rng_state().numpy()
        if self.device.type == "cuda":
            state["device_generator"] = torch.cuda.get_rng_state(self.device).numpy()
        return EpochProgress(
            training_seconds=self._training.seconds, data_wait_seconds=self._waiting.seconds, state=state
        )

    def _restore(self, state: Weights) -> None:
        """Put back what stands in `EpochProgress.state`; nothing where an epoch begins."""
        if state:
            for name, tensor in self._sums.items():
                tensor.copy_(torch.from_numpy(state[name]))
            torch.set_rng_state(torch.from_numpy(state["generator"]))
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(torch.from_numpy(state["device_generator"]), self.device)

    def _step(self, images: Tensor, labels: Tensor, learning_rate: float) -> tuple[Tensor, Tensor]:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad()
        outputs, losses = self._forward(images, labels)
        if self.config.device.mixed_precision:
            self.scaler.scale(losses.mean()).backward()
            self._scaled_update()
        else:
            losses.mean().backward()
            self.optimizer.step()
        return outputs.detach(), losses.detach()

    def _scaled_update(self) -> None:
        """Average the gradients first, so that an overflow on one rank makes all ranks leave out the same step."""
        optimizer: Any = self.optimizer
        if hasattr(optimizer, "skip_synchronize"):  # Horovod's
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                self.scaler.step(optimizer)
        else:
            self.scaler.step(optimizer)
        self.scaler.update()

    @torch.inference_mode()
    def evaluate(self, batches: Batches, *, phase: Literal["validation", "test"]) -> tuple[Sums, float]:
        """Return the sums of this rank over the batches, in inference mode, and the seconds it took."""
        self.model.eval()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        samples = 0
        with self.phases.phase(phase, synchronize=self._synchronize) as evaluation:
            for images, labels in batches:
                outputs, losses = self._forward(images, labels)
                loss_sum += losses.sum(dtype=torch.float64)
                correct += (outputs.argmax(dim=1) == labels).sum()
                samples += len(labels)
        return Sums(float(loss_sum), float(correct), samples), evaluation.seconds

    def _synchronize(self) -> None:
        synchronize(self.device)

    def _forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.device.type, dtype=torch.float16, enabled=self.config.device.mixed_precision):
            outputs = self.model(images)
        losses = loss_per_sample(outputs, labels, config=self.config.optimizer, model_config=self.config.model)
        return outputs, losses


def seed_dropout(*, seed: int, epoch: int, rank: int) -> None:
    """Give every epoch and rank dropout masks of their own that do not depend on what ran before."""
    torch.manual_seed(int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1)))
