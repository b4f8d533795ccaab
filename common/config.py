"""All settings of a run: validated dataclasses, one for each subject, which are also the trainers' command line.

    config = parse_command_line(["--model", "mlp", "--epochs", "3"], program="torch_impl/train.py")

Defaults are overridden by `--recipe FILE` (TOML, a table per subject with the names of the fields), both by flags.
"""

import contextlib
import dataclasses
import functools
import io
import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import tyro
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from common.errors import EXIT_CODE_USER_ERROR, UserError, expanded, first_problem
from common.model.specs import MODEL_NAMES
from common.utils.command_line import project_version


def _require(condition: bool, *, problem: str, received: str, remedy: str) -> None:
    if not condition:
        raise UserError(f"{problem}. Received: {received}. {remedy}")


def _exclude(both: bool, *, problem: str, received: str) -> None:
    _require(not both, problem=problem, received=received, remedy="Leave one of the two out")


@dataclass(frozen=True, kw_only=True)
class Range:
    """The values that a setting may have, in its annotation; they are finite."""

    least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf
    most: float = math.inf

    def contains(self, value: float) -> bool:
        """Return whether a setting may have this value."""
        return math.isfinite(value) and self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        bounds = {"at least": self.least, "above": self.above, "below": self.below, "at most": self.most}
        return " and ".join(f"{words} {bound:,}" for words, bound in bounds.items() if math.isfinite(bound))


Count = Annotated[int, Range(least=1)]
LimitedCount = Annotated[int, Range(least=1, most=10**6)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
LimitedRate = Annotated[float, Range(least=0, most=10**6)]


def _precision(value: Any) -> Any:
    """Return a flag of earlier run folders, which meant float16, as a precision."""
    return ("float16" if value else "none") if isinstance(value, bool) else value


Precision = Annotated[Literal["none", "float16", "bfloat16"], BeforeValidator(_precision)]
Fraction = Annotated[float, Range(least=0, below=1)]


@dataclass(frozen=True)
class _Settings:
    """Settings of one subject, whose values are in the ranges of their annotations."""

    def __post_init__(self) -> None:
        for name, annotation in get_type_hints(type(self), include_extras=True).items():
            value, flag = getattr(self, name), f"--{name.replace('_', '-')}"
            for allowed in _ranges(annotation):
                _require(
                    value is None or isinstance(value, str) or allowed.contains(value),
                    problem=f"{flag} is out of range",
                    received=f"{flag} {value}",
                    remedy=f"Give a number that is {allowed}",
                )


def _ranges(annotation: Any) -> list[Range]:
    """Return the ranges in an annotation such as `Count` or `Count | None`."""
    parts = [annotation, *get_args(annotation)]
    return [one for part in parts for one in getattr(part, "__metadata__", ()) if isinstance(one, Range)]


@dataclass(frozen=True)
class DataConfig(_Settings):
    """the samples, and how pixels become numbers"""

    dataset: str = "mnist"
    """mnist, fashion_mnist, cifar10, synthetic, synthetic:SAMPLESxHEIGHTxWIDTHxCHANNELSxCLASSES, images:PATH (a folder
    with one subfolder per class) or prepared:FILE (written by `python -m common images prepare`)"""
    data_folder: str | None = None
    """folder with the files of the data set, searched after the cache and before a download"""
    image_size: tuple[int, int] | None = None
    """height and width in pixels to which images:PATH is resized (None: the images already have one size)"""
    gray: bool = False
    """convert images:PATH to one gray channel"""
    normalization: Literal["standard", "unit"] = "standard"
    """standard: (pixel / 255 - mean) / standard deviation of the data set; unit: pixel / 255"""
    validation_share: Fraction = 0.0
    """fraction of the training samples kept for validation, from 0 to below 1, chosen by the seed before sharding
    (prepared:FILE has its own validation samples)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            self.image_size is None or min(self.image_size) >= 1,
            problem="--image-size is out of range",
            received=f"--image-size {self.image_size}",
            remedy="Give height and width in pixels, 1 or more each, such as --image-size 148 197",
        )


@dataclass(frozen=True)
class ModelConfig(_Settings):
    """the model"""

    model: str = "cnn"
    """mlp, cnn, simplecnn, resnet34 or dense500"""
    outputs: Annotated[int, Range(least=2, most=10**6)] | None = None
    """units of the last layer (None: the number of classes of the data set)"""
    output_activation: Literal["linear", "sigmoid", "softmax"] = "linear"
    """activation of the last layer before the mse loss; cross_entropy needs linear outputs"""
    dropout: bool = True
    """use the dropout layers of the model in training"""
    batch_norm: Literal["trained", "frozen_after_validation"] = "trained"
    """frozen_after_validation: from the first validation on, BatchNorm also trains with its running statistics, which
    no longer change (a mistake in the thesis, for its reproduction)"""
    dtype: Literal["float32", "float64"] = "float32"
    """type of weights and computation; float64 is meant for comparisons of the two frameworks"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            self.model in MODEL_NAMES,
            problem="unknown model",
            received=f"--model {self.model}",
            remedy=f"Choose one of {', '.join(MODEL_NAMES)}",
        )


@dataclass(frozen=True)
class OptimizerConfig(_Settings):
    """the update rule: PyTorch's formulas in both frameworks"""

    optimizer: Literal["sgd", "adam", "adamw", "rmsprop"] = "sgd"
    """update rule"""
    learning_rate: LimitedRate = 0.01
    """learning rate of one rank, see --lr-scaling"""
    momentum: Fraction = 0.9
    """momentum of sgd"""
    nesterov: bool = False
    """Nesterov momentum of sgd"""
    weight_decay: LimitedRate = 0.0
    """weight decay of all weights: an L2 term in the gradient (sgd, adam, rmsprop) or decoupled (adamw)"""
    beta1: Fraction = 0.9
    """decay of the first moment of adam and adamw"""
    beta2: Fraction = 0.999
    """decay of the second moment of adam and adamw"""
    alpha: Fraction = 0.99
    """decay of the mean squared gradient of rmsprop"""
    epsilon: Positive = 1e-8
    """term added to the square root in adam, adamw and rmsprop"""
    loss: Literal["cross_entropy", "mse"] = "cross_entropy"
    """loss function; mse is the mean over samples and outputs of (output - one-hot label) squared"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            not self.nesterov or self.momentum > 0,
            problem="--nesterov needs momentum",
            received=f"--momentum {self.momentum}",
            remedy="Give --momentum above 0 or leave --nesterov out",
        )


@dataclass(frozen=True)
class ScheduleConfig(_Settings):
    """the learning rate over the run"""

    lr_scaling: Literal["linear", "sqrt", "none"] | None = None
    """factor of the learning rate: the number of ranks (times --backward-passes-per-step), its square root, or 1
    (None: linear; none with --adasum)"""
    warmup_epochs: NotNegative = 1.0
    """epochs over which the learning rate rises linearly from that of one rank to the scaled one"""
    decay: Literal["none", "cosine", "step"] = "none"
    """after the warm-up: constant, half a cosine down to 0 at the last step, or --decay-factor every --decay-epochs"""
    decay_epochs: Positive = 10.0
    """epochs between reductions of --decay step"""
    decay_factor: NotNegative = 0.1
    """factor of each reduction of --decay step"""


@dataclass(frozen=True)
class TrainingConfig(_Settings):
    """length of the training, batches, evaluation, seed"""

    epochs: Annotated[int, Range(least=0, most=10**6)] = 12
    """passes over the training samples; 0 evaluates only"""
    batch_size: LimitedCount = 64
    """images per backward pass and rank; the global batch is this times the number of ranks, however they share it"""
    eval_batch_size: LimitedCount = 500
    """images per step and rank in validation and test"""
    seed: Annotated[int, Range(least=0)] = 1
    """seed of the initial weights, the validation split, the sample order and dropout"""
    steps_per_epoch: Count | None = None
    """steps per epoch (None: all whole global batches)"""
    max_steps: Count | None = None
    """stop after this many steps in total"""
    validate_every: Count = 1
    """epochs between validations, if there are validation samples"""
    validation: Literal["sharded", "replicated"] = "sharded"
    """sharded: each rank evaluates its part of the validation samples; replicated: each rank evaluates all of them"""
    early_stop: Count | None = None
    """stop after this many validations in a row without a lower validation loss"""
    target_accuracy: Annotated[float, Range(above=0, most=1)] | None = None
    """stop when the validation accuracy reaches this fraction, and record the time to reach it"""
    evaluate_first: bool = False
    """also evaluate the test samples before training"""
    start_weights: str | None = None
    """run folder of either framework, with whose final weights a new run of the same model starts, but not with its
    optimizer's state (None: weights drawn from the seed)"""


# Loss scaling of mixed precision, for which the frameworks have different defaults: the initial factor, which is halved
# after each overflow, and the number of updates without overflow after which it is doubled.
INITIAL_LOSS_SCALE = 2.0**15
LOSS_SCALE_GROWTH_STEPS = 2000


@dataclass(frozen=True)
class DeviceConfig(_Settings):
    """the device, and how gradients are exchanged"""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: one GPU per rank if there are GPUs, otherwise the CPU"""
    mixed_precision: Precision = "none"
    """type that layers compute in, with float32 weights: float16, with loss scaling, on GPUs only; or bfloat16"""
    tf32: bool = False
    """let GPUs since Ampere round the factors of float32 products to 10 bits, as TensorFlow does by default"""
    cudnn_benchmark: bool = False
    """let cuDNN try its algorithms and take the fastest, whose sums may differ in their last bits between runs; without
    it only those are taken that always add in the same order"""
    channels_last: bool = True
    """layout of images in memory: height, width, channels; --no-channels-last: channels first (Keras: on GPUs only)"""
    pinned_memory: bool = False
    """copy batches to the GPU from page-locked memory, while it computes; from other memory a copy waits for the GPU,
    which counts as waiting for data. PyTorch only, as TensorFlow copies them in its own way"""
    share_gpu: bool = False
    """let the ranks of a host share its GPUs, for tests: gradients go through host memory, as NCCL refuses two ranks on
    one GPU; the times of such a run are not compared"""
    threads: Annotated[int, Range(least=1, most=1024)] | None = None
    """compute threads per rank (None: cores of the host / ranks on the host)"""
    compression: Literal["none", "fp16"] = "none"
    """type in which gradients are sent: their own, or float16"""
    gradient_groups: Literal["one", "each"] = "one"
    """average all gradients in one grouped all-reduce, or each tensor in its own"""
    backward_passes_per_step: Count = 1
    """batches of each rank whose gradients are averaged before one exchange and one update (of allreduce): the global
    batch is this many times larger, and --lr-scaling counts it like ranks"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _exclude(
            self.mixed_precision == "float16" and self.device == "cpu",
            problem="mixed precision in float16 needs a GPU (bfloat16 does not)",
            received="--mixed-precision float16 --device cpu",
        )
        _exclude(
            self.pinned_memory and self.device == "cpu",
            problem="pinned memory is for copies to a GPU",
            received="--pinned-memory --device cpu",
        )
        _exclude(
            self.share_gpu and self.device == "cpu",
            problem="ranks on the CPU share no GPU",
            received="--share-gpu --device cpu",
        )


# The strategy that an option belongs to; with another one it has its default.
STRATEGY_OF_OPTION = {
    "adasum": "allreduce",
    "average_every": "averaging",
    "average_state": "averaging",
    "warmup_allreduce": "averaging",
    "native": "native",
    "replicas": "native",
    "servers": "server",
    "staleness": "server",
    "push_every": "server",
    "fetch_every": "server",
    "replay": "server",
}


def _flag(name: str, value: Any) -> str:
    """Return a setting as on the command line."""
    option = name.replace("_", "-")
    return f"--{'' if value else 'no-'}{option}" if isinstance(value, bool) else f"--{option} {value}"


NATIVE_FRAMEWORKS = {"ddp": "torch", "mirrored": "keras", "multiworker": "keras"}


@dataclass(frozen=True)
class StrategyConfig(_Settings):
    """how the ranks share the work of a batch"""

    strategy: Literal["allreduce", "averaging", "native", "server"] = "allreduce"
    """allreduce: gradients are averaged over the ranks before every update; averaging: each rank updates its own
    weights, which are averaged now and then; native: the framework's own way, without Horovod; server: ranks without
    data hold and update the weights"""
    average_every: Count | Literal["epoch"] | None = None
    """updates from one averaging of the weights to the next, counted from the start of the run, or epoch: at the end of
    each; needed by averaging"""
    average_state: bool = True
    """average the optimizer's state (momentum, moments) together with the weights; --no-average-state: each rank keeps
    its own"""
    warmup_allreduce: Annotated[int, Range(least=0)] = 0
    """updates at the start of the run whose gradients are averaged, before averaging begins (post-local SGD)"""
    native: Literal["ddp", "mirrored", "multiworker"] | None = None
    """ddp: PyTorch's DistributedDataParallel; mirrored, multiworker: TensorFlow's MirroredStrategy, one process with
    --replicas devices, and MultiWorkerMirroredStrategy, one per rank; needed by native"""
    replicas: Annotated[int, Range(least=1, most=1024)] | None = None
    """devices of mirrored, each of which takes the samples that a rank would take"""
    adasum: bool = False
    """allreduce of 2, 4 or 8 ranks over MPI: each rank makes an update of its own gradients, and Adasum combines the
    updates by the angles between them (arXiv 2006.02924)"""
    servers: Count | None = None
    """ranks, the last ones, of which each holds an equal part of the weights; needed by server"""
    staleness: Annotated[int, Range(least=0, most=10**6)] | Literal["none"] = 0
    """0: servers average one gradient of each worker for every update; otherwise each gradient is an update, workers
    draw their batches, and none starts a step more than this ahead of the slowest (none: no limit), which needs
    --lr-scaling to be chosen"""
    push_every: LimitedCount = 1
    """batches after which a worker sends the sum of their gradients"""
    fetch_every: LimitedCount = 1
    """batches after which a worker fetches the weights"""
    replay: str | None = None
    """run folder of a run with --staleness other than 0, to be repeated with the same settings: who computed which
    batch, and which gradient came when"""

    @property
    def uses_horovod(self) -> bool:
        """Whether Horovod connects the ranks; else MPI alone does."""
        return self.strategy in ("allreduce", "averaging")

    @property
    def needs_mpi(self) -> bool:
        """Whether ranks cannot be connected by Gloo."""
        return self.adasum or not self.uses_horovod

    def check_framework(self, program: str) -> None:
        """Raise UserError if this trainer (such as torch_impl/train.py) is not of the native strategy's framework."""
        framework = NATIVE_FRAMEWORKS.get(str(self.native))
        _require(
            framework is None or program.startswith(framework),
            problem=f"{self.native} is a strategy of the other framework",
            received=f"--native {self.native} for {program}",
            remedy=f"Use {framework}_impl/train.py",
        )

    def check_ranks(self, ranks: int) -> None:
        """Raise UserError if so many ranks, servers included, cannot train by the strategy."""
        _require(
            self.servers is None or self.servers < ranks,
            problem="servers are ranks of their own, beside at least one worker",
            received=f"--servers {self.servers} on {ranks}",
            remedy="Start more ranks by horovodrun --mpi, mpirun or srun, or give fewer servers",
        )
        _require(
            not self.adasum or ranks in (2, 4, 8),
            problem="Adasum combines the updates of 2, 4 or 8 ranks",
            received=f"--adasum on {ranks}",
            remedy="Start as many, or leave it out",
        )
        _require(
            self.native != "mirrored" or ranks == 1,
            problem="mirrored is one process with several devices",
            received=f"{ranks} ranks",
            remedy="Start one, or give --native multiworker",
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        averaging, native = self.strategy == "averaging", self.strategy == "native"
        _require(
            not averaging or self.average_every is not None,
            problem="averaging needs an interval",
            received="--strategy averaging",
            remedy="Give --average-every, such as 8 or epoch",
        )
        _require(
            not native or self.native is not None,
            problem="there are several native strategies",
            received="--strategy native",
            remedy=f"Give --native, one of {', '.join(NATIVE_FRAMEWORKS)}",
        )
        _require(
            self.native != "mirrored" or self.replicas is not None,
            problem="mirrored needs a number of devices",
            received="--native mirrored",
            remedy="Give --replicas, such as 2",
        )
        _require(
            self.native in (None, "mirrored") or self.replicas is None,
            problem="each rank is one replica but for --native mirrored",
            received=f"--native {self.native} --replicas {self.replicas}",
            remedy="Leave --replicas out, and start as many ranks",
        )
        _require(
            self.strategy != "server" or self.servers is not None,
            problem="servers are ranks of their own",
            received="--strategy server",
            remedy="Give --servers, such as 1",
        )
        for option in dataclasses.fields(self):
            value, strategy = getattr(self, option.name), STRATEGY_OF_OPTION.get(option.name, self.strategy)
            flag = _flag(option.name, value)
            _require(
                strategy == self.strategy or value == option.default,
                problem=f"--{option.name.replace('_', '-')} is an option of --strategy {strategy}",
                received=f"--strategy {self.strategy} {flag}",
                remedy=f"Leave it out, or give --strategy {strategy}",
            )
        for name in ("push_every", "fetch_every", "replay"):
            value = getattr(self, name)
            _require(
                self.strategy != "server" or self.staleness != 0 or value in (1, None),
                problem="with --staleness 0, the default, all workers push and fetch in every update",
                received=f"--staleness 0 {_flag(name, value)}",
                remedy="Leave it out, or give --staleness none, or 1 or more",
            )


MOST_SLOW = 1000  # factor of a straggler
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank whose computing takes `factor` times as long, in each update with this probability."""

    rank: int
    factor: float
    probability: float


@dataclass(frozen=True)
class BalanceConfig(_Settings):
    """ranks of unequal speed"""

    shares: str | None = None
    """parts of a global batch that the ranks take, in their order, such as 2:1, or auto: by their speed, measured
    before training; at least one image each. Gradients and averages are weighted by images, and validation and test are
    shared in the same way (None: equal parts)"""
    slow: str | None = None
    """plant a straggler, RANK:FACTOR[:PROBABILITY]: forward and backward of this rank take FACTOR times as long, in
    every update or with this probability, drawn from the seed; the times of such a run are not compared"""
    slow_is_subject: bool = False
    """compare the times of a run with --slow: an experiment about stragglers"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            self.parts is None or min(self.parts) > 0,
            problem="--shares is no ratio",
            received=f"--shares {self.shares}",
            remedy="Give a number above 0 for each rank, such as 2:1, or auto",
        )
        straggler = self.straggler
        _require(
            straggler is None or (1 <= straggler.factor <= MOST_SLOW and 0 < straggler.probability <= 1),
            problem="--slow is no straggler",
            received=f"--slow {self.slow}",
            remedy="Give RANK:FACTOR or RANK:FACTOR:PROBABILITY, "
            f"a factor from 1 to {MOST_SLOW}, such as 0:2 or 0:2:0.1",
        )
        _require(
            not self.slow_is_subject or self.slow is not None,
            problem="there is no straggler to be the subject",
            received="--slow-is-subject without --slow",
            remedy="Give --slow RANK:FACTOR, or leave it out",
        )

    def check_workers(self, workers: int) -> None:
        """Raise UserError if parts or straggler are not those of so many workers, the ranks without servers."""
        _require(
            self.parts is None or len(self.parts) == workers,
            problem="there is one part for each worker",
            received=f"--shares {self.shares} on {workers}",
            remedy=f"Give as many numbers, such as {':'.join(['2', *['1'] * (workers - 1)])}",
        )
        _require(
            self.straggler is None or self.straggler.rank < workers,
            problem="the straggler is none of the workers, which count from 0",
            received=f"--slow {self.slow} on {workers}",
            remedy=f"Give a rank from 0 to {workers - 1}",
        )

    @property
    def parts(self) -> tuple[float, ...] | None:
        """The numbers of `shares`, 0 for what is none; None: equal parts, or parts that are yet to be measured."""
        if self.shares is None or self.shares == "auto":
            return None
        return tuple(float(part) if re.fullmatch(_NUMBER, part) else 0.0 for part in self.shares.split(":"))

    @property
    def straggler(self) -> Straggler | None:
        """The rank of `slow`, with a factor of 0 if it cannot be read; None: no straggler is planted."""
        if self.slow is None:
            return None
        found = re.fullmatch(rf"(\d{{1,9}}):({_NUMBER})(?::({_NUMBER}))?", self.slow)
        rank, factor, probability = found.groups() if found else (0, 0, None)
        return Straggler(rank=int(rank), factor=float(factor), probability=float(probability or 1))


@dataclass(frozen=True)
class EnergyConfig(_Settings):
    """the measurement of energy, in separate runs"""

    energy: bool = False
    """measure the energy of GPUs, processors and memory; the times of such a run are not compared"""
    power_interval: Annotated[float, Range(least=0.01, most=60)] = 0.5
    """seconds between samples of power"""
    idle_seconds: NotNegative = 10.0
    """seconds for which idle power is measured, before the model is built and again after the test"""
    powercap_folder: str = "/sys/class/powercap"
    """folder of the energy counters of processors and memory (RAPL); containers may mount it elsewhere"""


@dataclass(frozen=True)
class RecordConfig(_Settings):
    """the run folder"""

    runs_folder: str = "runs"
    """folder of the run folders, relative to the current one"""
    name: str | None = None
    """name of the run folder (None: framework, model, data set, ranks, date and time)"""
    resume: str | None = None
    """run folder of the run to resume; its settings are kept, except that --epochs, --max-steps, --keep,
    --checkpoint-minutes, --tensorboard, --progress and --data-folder can be changed"""
    resume_or_start: bool = False
    """resume the run of this --name if it exists and is not finished, otherwise start it: for commands that a batch
    system runs again"""
    keep: Annotated[int, Range(least=0)] = 1
    """number of checkpoints of finished epochs to keep, the newest ones; 0 keeps all"""
    checkpoint_minutes: Positive | None = None
    """minutes between checkpoints inside an epoch (None: only after each epoch)"""
    tensorboard: bool = False
    """also write TensorBoard event files"""
    profile: bool = False
    """time each part of a step, which slows it down: the times of such a run are not compared"""
    horovod_timeline: bool = False
    """record Horovod's timeline of the training as timeline.json; needs 2 ranks or more"""
    progress: Literal["auto", "bars", "lines"] = "auto"
    """progress bars, or one line per epoch (auto: bars in a terminal without a launcher)"""
    site: str = "local"
    """recorded name of the place of the run: a node that `python -m launch sites` lists, or a name of your own"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            self.name is None or re.fullmatch(r"(?!\.)[\w.+-]{1,200}", self.name) is not None,
            problem="--name is not a valid folder name",
            received=f"--name {self.name!r}",
            remedy="Use at most 200 letters, digits, '.', '_', '+' and '-' only",
        )
        _require(
            re.fullmatch(r"[\w.+-]{1,100}", self.site) is not None,
            problem="--site is not a valid name",
            received=f"--site {self.site!r}",
            remedy="Use at most 100 letters, digits, '.', '_', '+' and '-' only",
        )
        _require(
            self.name is not None or not self.resume_or_start,
            problem="--resume-or-start finds the run by its name",
            received="--resume-or-start without --name",
            remedy="Give --name",
        )

    def folder(self, name: str) -> Path:
        """Return the run folder of a new run of this name."""
        return expanded(self.runs_folder) / name


# Strategy -> option that it refuses -> why.
_REFUSED_BY = {
    "adasum": {
        "--profile": "--profile times the averaging of gradients",
        "--compression": "Adasum in float16 is not proven",
        "--gradient-groups": "all updates are combined in one group",
        "--mixed-precision": "Adasum in float16 is not proven",
        "--shares": "Adasum weights updates by their angles, not by images",
    },
    "averaging": {
        "--profile": "--profile times the averaging of gradients",
        "--compression": "weights are averaged as they are",
        "--gradient-groups": "all weights are averaged in one group",
        "--mixed-precision": "each rank would scale its loss in its own way",
    },
    "native": {
        "--profile": "--profile times Horovod's averaging of gradients",
        "--compression": "the framework sends gradients as they are",
        "--gradient-groups": "the framework groups gradients in its own way",
        "--mixed-precision": "the scale of the loss is not tested with native strategies",
        "--horovod-timeline": "native strategies do not start Horovod",
        "--share-gpu": "the framework exchanges gradients between GPUs",
        "--shares": "the framework takes equal parts of a batch",
        "--slow": "stragglers are planted in the exchanges of the other strategies",
    },
    "server": {
        "--profile": "--profile times the averaging of gradients",
        "--compression": "gradients are sent as they are",
        "--gradient-groups": "all gradients are sent together",
        "--mixed-precision": "each rank would scale its loss in its own way",
        "--horovod-timeline": "Horovod is not started",
    },
}


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    energy: EnergyConfig = field(default_factory=EnergyConfig)
    record: RecordConfig = field(default_factory=RecordConfig)

    def __post_init__(self) -> None:
        self._check_steps()
        _require(
            not (self.optimizer.loss == "cross_entropy" and self.model.output_activation != "linear"),
            problem="cross_entropy contains its own softmax and needs linear outputs",
            received=f"--loss cross_entropy --output-activation {self.model.output_activation}",
            remedy="Use --output-activation linear, or --loss mse",
        )
        mixed, profile = self.device.mixed_precision, self.record.profile
        _exclude(
            mixed != "none" and self.model.dtype == "float64",
            problem="mixed precision has float32 weights, not float64",
            received=f"--mixed-precision {mixed} --dtype float64",
        )
        _exclude(
            profile and self.device.gradient_groups == "each",
            problem="--profile times a single exchange, after the last gradient",
            received="--profile --gradient-groups each",
        )
        _exclude(
            profile and mixed != "none",
            problem="--profile does not support mixed precision",
            received=f"--profile --mixed-precision {mixed}",
        )
        _exclude(
            profile and self.model.batch_norm != "trained",
            problem="--profile needs steps of one kind",
            received=f"--profile --batch-norm {self.model.batch_norm}",
        )
        _exclude(
            profile and self.energy.energy,
            problem="--profile changes the steps whose energy would be measured",
            received="--profile --energy",
        )
        self._check_strategy()

    def check_ranks(self, ranks: int) -> None:
        """Raise UserError if so many ranks, servers included, cannot share the work in this way."""
        self.strategy.check_ranks(ranks)
        self.balance.check_workers(ranks - (self.strategy.servers or 0))

    def _check_strategy(self) -> None:
        device, record, strategy = self.device, self.record, self.strategy.strategy
        names = {strategy: f"--strategy {strategy}"} | ({"adasum": "--adasum"} if self.strategy.adasum else {})
        for flag, given in (
            ("--profile", record.profile),
            (f"--compression {device.compression}", device.compression != "none"),
            ("--gradient-groups each", device.gradient_groups == "each"),
            ("--mixed-precision float16", device.mixed_precision == "float16"),
            ("--horovod-timeline", record.horovod_timeline),
            ("--share-gpu", device.share_gpu),
            (f"--shares {self.balance.shares}", self.balance.shares is not None),
            (f"--slow {self.balance.slow}", self.balance.slow is not None),
        ):
            for name, chosen in names.items():
                reason = _REFUSED_BY.get(name, {}).get(flag.split()[0])
                _exclude(given and reason is not None, problem=str(reason), received=f"{chosen} {flag}")
        _require(
            self.strategy.staleness == 0 or self.schedule.lr_scaling is not None,
            problem="each update is of one worker's batch, and the learning rate of all may be too large",
            received=f"--staleness {self.strategy.staleness} without --lr-scaling",
            remedy="Give --lr-scaling, such as none",
        )
        _exclude(
            self.strategy.staleness != 0 and self.balance.shares is not None,
            problem="workers that draw their batches share the work by their speed anyway",
            received=f"--staleness {self.strategy.staleness} --shares {self.balance.shares}",
        )
        _require(
            not (self.energy.energy and self.strategy.replicas and device.device != "cpu"),
            problem="energy is measured of one GPU per rank",
            received=f"--energy --native mirrored --replicas {self.strategy.replicas}",
            remedy="Give --device cpu, or --native multiworker",
        )
        _exclude(
            self.strategy.replay is not None and record.checkpoint_minutes is not None,
            problem="in a replay workers meet where they met in the run",
            received=f"--replay {self.strategy.replay} --checkpoint-minutes {record.checkpoint_minutes}",
        )

    def _check_steps(self) -> None:
        """Check what steps of another form do not fit together with."""
        passes, slow, profile = self.device.backward_passes_per_step, self.balance.slow, self.record.profile
        passes_flag = f"--backward-passes-per-step {passes}"
        _require(
            passes == 1 or self.strategy.strategy == "allreduce",
            problem="--backward-passes-per-step is an option of --strategy allreduce",
            received=f"--strategy {self.strategy.strategy} {passes_flag}",
            remedy="Leave it out, or give another --batch-size",
        )
        for flag, given in ((passes_flag, passes > 1), (f"--slow {slow}", slow is not None)):
            _exclude(given and profile, problem="--profile needs plain steps", received=f"--profile {flag}")
        _exclude(
            slow is not None and self.device.gradient_groups == "each",
            problem="a straggler sleeps before it exchanges anything",
            received=f"--slow {slow} --gradient-groups each",
        )

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the settings as plain nested dictionaries (for JSON)."""
        return dataclasses.asdict(self)


def changed_settings(before: Config, after: Config) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield subject, name, old value and new value of each setting that differs."""
    old = before.as_dict()
    for subject, values in after.as_dict().items():
        for name, value in values.items():
            if value != old[subject][name]:
                yield subject, name, old[subject][name], value


@functools.cache  # building it takes longer than all that it validates
def _adapter() -> TypeAdapter[Config]:
    return TypeAdapter(Config)


def config_from_dict(settings: dict[str, Any], *, base: Config | None = None, source: str = "settings") -> Config:
    """Return `base` with some settings replaced.

    Args:
        settings: subject -> field -> value, as in a recipe or in `run.json`.
        base: the other settings; None: the defaults.
        source: name of the origin for error messages.

    Raises:
        UserError: unknown subject or field, wrong type, or a value out of range.
    """
    merged = (base or Config()).as_dict()
    for subject, values in settings.items():
        if subject not in merged or not isinstance(values, dict):
            raise UserError(f"unknown subject in {source}. Received: [{subject}]. Use {', '.join(merged)}")
        unknown = set(values) - set(merged[subject])
        if unknown:
            raise UserError(
                f"unknown setting in {source}. Received: {min(unknown)} in [{subject}]. "
                f"Use {', '.join(merged[subject])}"
            )
        merged[subject] |= values
    try:
        # Through JSON, in which a list is a valid tuple; strict, so that "3" is not a valid int.
        return _adapter().validate_json(json.dumps(merged, default=str), strict=True)
    except ValidationError as error:
        raise UserError(f"{first_problem(error)} (in {source})") from None


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the settings of a recipe, a TOML file, without its table [about] (title, source, deviations).

    Raises:
        UserError: the file is missing, is not TOML, or sets what only a flag can.
    """
    try:
        with path.open("rb") as file:
            recipe = tomllib.load(file)
    except OSError as error:
        raise UserError(f"cannot read the recipe. Received: --recipe {path} ({error.strerror}). Name a file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the recipe is not TOML. Received: --recipe {path} ({error}). Fix the file") from None
    recipe.pop("about", None)
    if isinstance(recipe.get("record"), dict) and "resume" in recipe["record"]:
        raise UserError(f"a recipe cannot resume a run. Received: resume in {path}. Give --resume RUN as a flag")
    return recipe


def parse_command_line(arguments: Sequence[str], *, program: str, base: Config | None = None) -> Config:
    """Return the settings of a command line; `--help` and `--version` print and exit.

    Args:
        base: the settings that are overridden; None: the defaults.

    Raises:
        UserError: an unknown flag or an invalid value.
    """
    if "--version" in arguments:
        print(project_version())
        raise SystemExit(0)
    recipe, flags = _split_option(arguments, "--recipe")
    if recipe is not None:
        base = config_from_dict(read_recipe(Path(recipe)), base=base, source=f"--recipe {recipe}")
    messages = io.StringIO()
    try:
        # tyro explains a bad flag in a box of several lines; users get one line.
        with contextlib.redirect_stderr(messages):
            config = tyro.cli(
                Config,
                args=flags,
                default=base or Config(),
                prog=program,
                description=(
                    "Train a model on Horovod. --recipe FILE (TOML) sets any of the following; "
                    "flags override the recipe."
                ),
                config=(tyro.conf.OmitArgPrefixes,),
                console_outputs=os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("HOROVOD_RANK", "0")) == "0",
            )
    except SystemExit as stop:
        if stop.code != EXIT_CODE_USER_ERROR:
            raise
        raise UserError(f"{_first_sentence(messages.getvalue())}. See {program} --help") from None
    return completed(config)


def completed(config: Config) -> Config:
    """Return the settings with the values of those that depend on others, as the record has them."""
    scaling = config.schedule.lr_scaling or ("none" if config.strategy.adasum else "linear")
    return dataclasses.replace(config, schedule=dataclasses.replace(config.schedule, lr_scaling=scaling))


def _split_option(arguments: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """Return the value of `option` (the last one given) and the other arguments.

    Raises:
        UserError: the value is missing.
    """
    value, others = None, []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == option:
            value = next(remaining, "")
        elif argument.startswith(f"{option}="):
            value = argument.removeprefix(f"{option}=")
        else:
            others.append(argument)
    if value == "":
        raise UserError(f"{option} needs a value. Received: nothing after {option}. Give a path, or leave it out")
    return value, others


def _first_sentence(box: str) -> str:
    """Return the text of tyro's error box below its title and above its next rule, as one line.

    On a terminal without UTF-8 the box has no sides, and hyphens below its title. If standard output is a terminal, it
    is colored.
    """
    lines: list[str] = []
    for line in re.sub(r"\x1b\[[\d;]*m", "", box).splitlines()[1:]:
        text = line.strip("│╭╰╮╯ ")
        if text.strip("─-"):
            lines.append(text)
        elif lines:
            break
    text = " ".join(lines).rstrip(".") or "the command line cannot be read"
    return re.sub(r"^Error parsing \w+: ", "", text)


def requested(option: str, arguments: Sequence[str]) -> str | None:
    """Return the value of an option such as `--resume` on a command line; None without it."""
    return _split_option(arguments, option)[0]
