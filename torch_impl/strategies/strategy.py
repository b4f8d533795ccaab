"""Training by one process alone. The other strategies override what several processes do otherwise."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from common.distributed.communicator import Communicator
from common.measurement.exchange_meter import ExchangeMeter
from common.measurement.metrics import Sums
from common.model.dropout import dropout_seeds
from common.model.weights import Weights
from common.run.strategy import RankStrategy
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import ring_record
from common.task.rank_batches import RankBatches
from common.task.task import Task
from torch_impl import distributed
from torch_impl.compiling import compile_errors, compiled
from torch_impl.exchange import GroupExchange
from torch_impl.optimizers import LossScale, loss_per_sample
from torch_impl.strategies.rehearsal import undone
from torch_impl.strategies.straggler import planted_slowdown
from torch_impl.strategies.sums import PlaceSums
from torch_impl.weights import get_optimizer_state, get_weights, load_optimizer_state, load_weights


class Strategy(RankStrategy):
    """One process alone, and what ranks with whole models have in common.

    Attributes:
        exchange: of the ranks that hold pieces of the same layers.
        model: computes; `wrap` sets it, and the next three.
        plain_model: the model whose weights have our names, where another one computes with them.
        optimizer: the update rule.
        scaler: the loss scale.
    """

    exchange: GroupExchange | None = None
    most_updates = 1  # the loop is Python's; what is gathered further ahead has left the cache when it is needed

    def __init__(
        self, task: Task, *, comm: Communicator, device: torch.device, meter: ExchangeMeter | None = None
    ) -> None:
        super().__init__(task, comm=comm)
        self.device, self.config = device, task.config
        self.meter = meter or ExchangeMeter()
        self._updates = self._first_step = 0
        self._gradient: Tensor | None = None
        self._precision = _precision(task.config.device.mixed_precision, device=device)

    def updates_made(self) -> int:
        """Return the updates made since `start_epoch`, also within a stack that fails."""
        return self._updates

    @property
    def steps_done(self) -> int:
        """Updates of the run that are done."""
        return self._first_step + self._updates

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, learning_rates: np.ndarray) -> None:
        """Take the model and the optimizer, and add what this strategy does.

        Args:
            model: on the device.
            learning_rates: one for each update of the run; the last one holds for all after it.
        """
        self.model = self.plain_model = model
        self.optimizer, self.learning_rates = optimizer, learning_rates
        self.scaler = LossScale(self.config.device, device=self.device)
        self._slowdown = planted_slowdown(self.task, model=model, rank=self.comm.rank, device=self.device)
        self._compiled = compiled(self.forward) if self.config.model.compile else None

    def load(self, weights: Weights, optimizer: Weights | None = None) -> None:
        """Load what `weights` and `optimizer_state` returned; without the latter the optimizer stays as it is."""
        load_weights(self.plain_model, weights, spec=self.spec)
        if optimizer:
            self.scaler.load(optimizer)
            load_optimizer_state(self.optimizer, optimizer, model=self.plain_model, spec=self.spec)

    def weights(self) -> Weights:
        """Return the weights and BatchNorm statistics under the names of the weights file; copies, on the host."""
        return get_weights(self.plain_model, spec=self.spec)

    def optimizer_state(self) -> Weights:
        """Return "<parameter>.<slot>" -> array, the number of updates, and the loss scale where there is one."""
        return self.scaler.arrays() | get_optimizer_state(self.optimizer, model=self.plain_model, spec=self.spec)

    def kept_arrays(self) -> Weights:
        """Return copies of `kept`, on the host."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self.kept().items()}

    def broadcast(self, *, from_checkpoint: bool) -> None:
        """Give all ranks the weights and the optimizer state of rank 0, unless each has read them."""
        if from_checkpoint:
            return
        if self.comm.world is not None:  # without Horovod
            self.load(*self.comm.broadcast((self.weights(), self.optimizer_state())))
        else:
            distributed.broadcast_state(self.model, self.optimizer, config=self.config.device, comm=self.comm)

    def rehearse(self, batches: RankBatches, epoch: int) -> None:
        """Train on the first batch of an epoch and undo it; all ranks call this, before an update is timed.

        Raises:
            UserError: with `--compile`, it cannot be compiled; on all ranks.
        """
        images, labels = next(batches.training(epoch, most=1))
        self._train_mode(epoch)
        with undone(self):
            if self._compiled:
                with compile_errors(self.comm):  # alone, so that an error ends all ranks before they exchange
                    self._compile_passes(images[0], labels[0])
            self._first_step = 0
            for _ in self.rehearsals():
                self._reset()
                self.step(images, labels)
        self._updates = 0

    def start_epoch(self, epoch: int, own: PartialEpoch) -> None:
        """Prepare an epoch, of which some may be done: sums, dropout masks, BatchNorm, what is this rank's own."""
        self.epoch, self._first_step = epoch, self.task.steps_after(epoch - 1) + own.steps
        self._reset()
        self._train_mode(epoch)
        self._seed_dropout()
        if own.weights or own.optimizer_state:
            self.load({**self.weights(), **own.weights}, own.optimizer_state)
        self._sums.restore(own.state)
        for name, tensor in self.kept().items():
            if name in own.state:
                tensor.copy_(torch.from_numpy(own.state[name]))
        if self._slowdown:
            self._slowdown.start_at(self._first_step)

    def step(self, images: Sequence[Tensor], labels: Sequence[Tensor]) -> None:
        """Make the updates of a stack, whose images are (batch, channels, height, width) and labels (batch,)."""
        for batch, its_labels in zip(images, labels, strict=True):
            outputs, losses = self.update(batch, its_labels)
            self._sums.add(outputs, losses, its_labels)
            self._updates += 1

    def update(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Make an update; return the outputs and losses of its images."""
        learning_rate = float(self.learning_rates[min(self.steps_done, len(self.learning_rates) - 1)])
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.clear_gradients()
        if self._slowdown:
            self._slowdown.start()
        outputs, losses = self.passes(images, labels)
        self.before_update()
        self.apply()
        self.meter.updates += 1
        self.after_update()
        return outputs, losses

    def clear_gradients(self) -> None:
        """Forget the gradients of the last update."""
        self.optimizer.zero_grad()

    def passes(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Add up the gradients of the passes of an update; return outputs and losses of its images."""
        passes = self.share.passes
        if passes == 1:
            return self._pass(images, labels)
        parts = [self._pass(*part) for part in zip(images.chunk(passes), labels.chunk(passes), strict=True)]
        outputs, losses = map(torch.cat, zip(*parts, strict=True))
        return outputs, losses

    def gradients(self) -> list[Tensor]:
        """Return the gradients that are there, in the order of the weights."""
        return [weight.grad for weight in self.model.parameters() if weight.grad is not None]

    def before_update(self) -> None:
        """Exchange what the update needs, once the gradients are there."""

    def apply(self) -> None:
        """Let the optimizer update the weights, unless gradients overflow."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def after_update(self) -> None:
        """Exchange what the update has made."""

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs and losses of images, without a loss scale."""
        with self._precision:
            outputs = self.model(images)
        return outputs, self.losses(outputs, labels)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return (batch,) losses."""
        return loss_per_sample(outputs, labels, config=self.config.optimizer, model_config=self.config.model)

    def loss_gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient of a pass's loss with respect to its per-sample losses, the same in every step.

        The loss itself, which is not computed, is the mean of the losses times the share's factor.
        """
        if self._gradient is None or self._gradient.shape != losses.shape:
            # In the order in which autograd would compute it, for the same weights to the last bit.
            self._gradient = torch.ones_like(losses) * self.share.loss_factor / len(losses)
        return self._gradient

    def end_epoch(self) -> PartialEpoch:
        """Average BatchNorm's statistics, with most strategies the only weights that are each rank's own.

        Returns:
            What this rank alone starts the next epoch with.
        """
        distributed.average_batch_norm(self.model, config=self.config.device, comm=self.comm, weight=self.share.weight)
        return self.own_state(self.task.steps_after(self.epoch))

    def sums(self, samples: int) -> Sums:
        """Return the sums of this rank over the epoch so far, as the weights were at each update.

        Args:
            samples: that this rank has trained on.
        """
        return self._sums.read(samples)

    def rank_state(self) -> Weights:
        """Return sums and generators of this rank inside an epoch, and what it keeps."""
        return self._sums.state() | self.kept_arrays()

    @torch.inference_mode()
    def evaluate(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Sums:
        """Return the sums of this rank over the batches, in inference mode."""
        self.model.eval()
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        samples = 0
        for images, labels in batches:
            outputs, losses = self.forward(images, labels)
            loss += losses.sum(dtype=torch.float64)
            correct += (outputs.argmax(dim=1) == labels).sum()
            samples += len(labels)
        return Sums(float(loss), float(correct), samples)

    def synchronize(self) -> None:
        """Wait until the device has done all its work, before a clock is read."""
        distributed.synchronize(self.device)

    def exchanged(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates; None: nothing that can be told."""
        return ring_record(self.task, self.meter, rank=self.comm.rank)

    def _pass(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradients of a batch, or of a part of it, to those that are there; return outputs and losses."""
        outputs, losses = (self._compiled or self.forward)(images, labels)
        losses.backward(self.scaler.scale(self.loss_gradient(losses)))
        return outputs.detach(), losses.detach()

    def _compile_passes(self, images: Tensor, labels: Tensor) -> None:
        """Compile both passes; not by `backward`, after which Horovod exchanges the gradients."""
        passes = self.share.passes
        assert self._compiled
        _, losses = self._compiled(images.chunk(passes)[0], labels.chunk(passes)[0])
        torch.autograd.grad(losses, list(self.model.parameters()), self.loss_gradient(losses))

    def _train_mode(self, epoch: int) -> None:
        self.model.train()
        if self.task.freezes_batch_norm_in(epoch):
            for layer in self.model.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.eval()

    def _reset(self) -> None:
        self._updates = 0
        self._sums = PlaceSums(self.share.samples, device=self.device)

    def _seed_dropout(self) -> None:
        """Give every epoch and rank dropout masks of their own that do not depend on what ran before."""
        seed, comm = self.config.training.seed, self.comm
        seeds = dropout_seeds(seed, epoch=self.epoch, rank=comm.data_rank, part=comm.own_part)
        torch.manual_seed(int(seeds.view(np.uint64)[0] >> np.uint64(1)))


def _precision(mixed: str, *, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass: with mixed precision, that of layers in 16 bits."""
    if mixed == "none":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16 if mixed == "bfloat16" else torch.float16)
