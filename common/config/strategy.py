"""Settings of how ranks share the work of a batch."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

from common.config.rules import Count, LimitedCount, Range, Settings, require, settings_flags
from common.errors import UserError

# The strategy that an option belongs to; with another one it has its default.
STRATEGY_OF_OPTION = {
    "adasum": "allreduce",
    "average_every": "averaging",
    "average_state": "averaging",
    "cut_after": "layers",
    "microbatches": "layers",
    "model_ranks": "split",
    "pipeline_schedule": "layers",
    "stages": "layers",
    "warmup_allreduce": "averaging",
    "native": "native",
    "replicas": "native",
    "servers": "server",
    "staleness": "server",
    "push_every": "server",
    "fetch_every": "server",
    "replay": "server",
}


NATIVE_FRAMEWORKS = {"ddp": "torch", "mirrored": "keras", "multiworker": "keras"}
# The options without which a strategy says too little: the problem, and an example.
_NEEDED = {
    "average_every": ("averaging needs an interval", "such as 8 or epoch"),
    "model_ranks": ("split needs the number of ranks that divide each layer", "such as 2"),
    "native": ("there are several native strategies", f"one of {', '.join(NATIVE_FRAMEWORKS)}"),
    "servers": ("server needs the number of servers", "such as 1"),
    "stages": ("layers needs the number of ranks that divide the model", "such as 2"),
}


def check_options(settings: Settings, *, strategy: str) -> None:
    """Raise UserError if an option belongs to another strategy, or is missing that this one needs."""
    for option in dataclasses.fields(settings):
        value, owner = getattr(settings, option.name), STRATEGY_OF_OPTION.get(option.name, strategy)
        if owner != strategy and value != option.default:
            raise UserError(
                f"--{option.name.replace('_', '-')} is an option of --strategy {owner}. "
                f"Received: --strategy {strategy} {' '.join(settings_flags({option.name: value}))}. "
                f"Leave it out, or give --strategy {owner}"
            )
        if owner == strategy and value is None and option.name in _NEEDED:
            problem, example = _NEEDED[option.name]
            raise UserError(
                f"{problem}. Received: --strategy {strategy}. Give --{option.name.replace('_', '-')}, {example}"
            )


@dataclass(frozen=True)
class StrategyConfig(Settings):
    """how the ranks share the work of a batch"""

    strategy: Literal["allreduce", "averaging", "layers", "native", "server", "split"] = "allreduce"
    """allreduce: gradients are averaged over the ranks before every update; averaging (local SGD): each rank updates
    its own weights, which are averaged periodically; layers (pipeline parallelism): ranks hold consecutive layers of
    one model; native: the framework's own strategy, without Horovod; server: ranks without data hold and update the
    weights; split (tensor parallelism): ranks hold a part of every layer"""
    average_every: Count | Literal["epoch"] | None = None
    """updates between averagings of the weights, counted from the start of the run; epoch: average at the end of each
    epoch; required by averaging"""
    average_state: bool = True
    """average the optimizer's state (momentum, moments) together with the weights; --no-average-state: each rank keeps
    its own state"""
    warmup_allreduce: Annotated[int, Range(least=0)] = 0
    """updates at the start of the run that average gradients, before averaging of weights begins (post-local SGD)"""
    native: Literal["ddp", "mirrored", "multiworker"] | None = None
    """ddp: PyTorch's DistributedDataParallel; mirrored, multiworker: TensorFlow's MirroredStrategy, one process with
    --replicas devices, and MultiWorkerMirroredStrategy, one per rank; required by native"""
    replicas: Annotated[int, Range(least=1, most=1024)] | None = None
    """number of devices for mirrored; each device gets the samples of one rank"""
    adasum: bool = False
    """allreduce of 2, 4 or 8 ranks over MPI: each rank computes an update from its own gradients, and Adasum combines
    the updates by the angles between them (arXiv 2006.02924)"""
    servers: Count | None = None
    """number of servers, which are the last ranks; each holds an equal part of the weights; required by server"""
    staleness: Annotated[int, Range(least=0, most=10**6)] | Literal["none"] = 0
    """0: for every update, servers average one gradient from each worker; otherwise servers apply each gradient as an
    update, each worker takes the next batch when it is ready, and no worker starts a step more than this many ahead of
    the slowest (none: no limit); this requires --lr-scaling"""
    push_every: LimitedCount = 1
    """batches after which a worker sends the sum of their gradients"""
    fetch_every: LimitedCount = 1
    """batches after which a worker fetches the weights"""
    replay: str | None = None
    """run folder of a run with --staleness other than 0, to repeat with the same settings: with the same
    assignment of batches to workers, and the same order of gradients"""

    @property
    def uses_horovod(self) -> bool:
        """Whether Horovod connects the ranks; else MPI alone does."""
        return self.strategy not in ("native", "server")

    @property
    def needs_mpi(self) -> bool:
        """Whether ranks cannot be connected by Gloo."""
        return self.adasum or self.strategy in ("layers", "split") or not self.uses_horovod

    def controller(self, wanted: str | None) -> str | None:
        """Return what is to connect the ranks: `wanted`, else mpi where nothing else can; None: what the site says."""
        return wanted or ("mpi" if self.needs_mpi else None)

    def check_framework(self, program: str) -> None:
        """Raise UserError if this trainer (such as torch_impl/train.py) is not of the native strategy's framework."""
        framework = NATIVE_FRAMEWORKS.get(str(self.native))
        require(
            framework is None or program.startswith(framework),
            problem=f"{self.native} is a strategy of the other framework",
            received=f"--native {self.native} for {program}",
            remedy=f"Use {framework}_impl/train.py",
        )

    def check_ranks(self, ranks: int) -> None:
        """Raise UserError if so many ranks, servers included, cannot train by the strategy."""
        require(
            self.servers is None or self.servers < ranks,
            problem="servers are separate ranks, in addition to at least one worker",
            received=f"--servers {self.servers} on {ranks}",
            remedy="Start more ranks with horovodrun --mpi, mpirun or srun, or give fewer servers",
        )
        require(
            not self.adasum or ranks in (2, 4, 8),
            problem="Adasum combines the updates of 2, 4 or 8 ranks",
            received=f"--adasum on {ranks}",
            remedy="Start 2, 4 or 8 ranks, or leave it out",
        )
        require(
            self.native != "mirrored" or ranks == 1,
            problem="mirrored is one process with several devices",
            received=f"{ranks} ranks",
            remedy="Start one rank, or give --native multiworker",
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, strategy=self.strategy)
        require(
            self.native != "mirrored" or self.replicas is not None,
            problem="mirrored needs a number of devices",
            received="--native mirrored",
            remedy="Give --replicas, such as 2",
        )
        require(
            self.native in (None, "mirrored") or self.replicas is None,
            problem="each rank is one replica, except with --native mirrored",
            received=f"--native {self.native} --replicas {self.replicas}",
            remedy="Leave --replicas out, and start as many ranks",
        )
        for name in ("push_every", "fetch_every", "replay"):
            value = getattr(self, name)
            require(
                self.strategy != "server" or self.staleness != 0 or value in (1, None),
                problem="with --staleness 0, the default, all workers push and fetch in every update",
                received=f"--staleness 0 {' '.join(settings_flags({name: value}))}",
                remedy="Leave it out, or give --staleness none, or 1 or more",
            )


@dataclass(frozen=True)
class PartsConfig(Settings):
    """models divided among several ranks, by the strategies layers and split"""

    stages: Annotated[int, Range(least=2, most=1024)] | None = None
    """number of ranks that divide the layers of one model; additional ranks hold copies of it; required by layers"""
    cut_after: str = "auto"
    """the last layer of each stage except the last stage, such as relu1 or relu1,relu2 (auto: balance the work of the
    stages)"""
    microbatches: LimitedCount = 4
    """number of parts of a batch, which pass through the stages one after another"""
    pipeline_schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """gpipe: all forward passes, then all backward passes; 1f1b: backward passes as early as possible, which keeps
    fewer activations"""
    model_ranks: Annotated[int, Range(least=2, most=1024)] | None = None
    """number of ranks that divide every layer of one model; additional ranks hold copies of it; required by split"""

    @property
    def count(self) -> int:
        """Ranks that hold one copy of the model together."""
        return self.stages or self.model_ranks or 1

    def check_ranks(self, ranks: int) -> None:
        """Raise UserError if so many ranks do not make whole copies of the model."""
        flag = "--stages" if self.stages else "--model-ranks"
        require(
            ranks % self.count == 0,
            problem="every copy of the model needs this number of ranks",
            received=f"{flag} {self.count} on {ranks}",
            remedy="Start a multiple of it with horovodrun --mpi, mpirun or srun",
        )
