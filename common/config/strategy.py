"""Settings of how ranks share the work of a batch."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from common.config.rules import NOTHING, Count, CountFromZero, LimitedCount, LimitedCountFromZero, Settings
from common.config.strategies import Strategy, strategy_of
from common.errors import UserError

Ranks = Annotated[int, Field(ge=2, le=1024)]  # that hold one model
MOST_SLOW = 1000  # factor of a straggler
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"


@dataclass(frozen=True)
class StrategyConfig(Settings):
    """how the ranks share the work of a batch"""

    strategy: Literal["allreduce", "averaging", "layers", "native", "server", "split"] = "allreduce"
    """how the ranks share the work of a batch"""
    average_every: Count | Literal["epoch"] | None = None
    """updates between averagings of the weights, counted from the start of the run; epoch: average at the end of each
    epoch"""
    average_state: bool = True
    """average the optimizer's state (momentum, moments) together with the weights; --no-average-state: each rank keeps
    its own state"""
    warmup_allreduce: CountFromZero = 0
    """updates at the start of the run that average gradients, before averaging of weights begins (post-local SGD)"""
    native: Literal["ddp", "mirrored", "multiworker"] | None = None
    """the framework's own strategy"""
    replicas: Annotated[int, Field(ge=1, le=1024)] | None = None
    """number of devices; each device gets the samples of one rank"""
    adasum: bool = False
    """allreduce of 2, 4 or 8 ranks over MPI: each rank computes an update from its own gradients, and Adasum combines
    the updates by the angles between them (arXiv 2006.02924)"""
    topk: Annotated[float, Field(gt=0, lt=1)] | None = None
    """allreduce: average only this share of each gradient, its largest entries by magnitude; each rank keeps the others
    and adds them to its next gradient (arXiv 1809.07599, 1712.01887)"""
    servers: Count | None = None
    """number of servers, which are the last ranks; each holds an equal part of the weights"""
    staleness: LimitedCountFromZero | Literal["none"] = 0
    """0: for every update, servers average one gradient from each worker; otherwise servers apply each gradient as an
    update, each worker takes the next batch when it is ready, and no worker starts a step more than this many ahead of
    the slowest (none: no limit)"""
    push_every: LimitedCount = 1
    """batches after which a worker sends the sum of their gradients"""
    fetch_every: LimitedCount = 1
    """batches after which a worker fetches the weights"""
    replay: str | None = None
    """run folder of a run with --staleness other than 0, to repeat with the same settings: with the same
    assignment of batches to workers, and the same order of gradients"""

    @property
    def traits(self) -> type[Strategy]:
        """What the strategy needs, supports and refuses."""
        return strategy_of(vars(self))

    @property
    def needs_mpi(self) -> bool:
        """Whether ranks cannot be connected by Gloo."""
        return not self.traits.over_gloo

    def controller(self, wanted: str | None) -> str | None:
        """Return what is to connect the ranks: `wanted`, else mpi where nothing else can; None: what the site says."""
        return wanted or ("mpi" if self.needs_mpi else None)

    def check_framework(self, program: str) -> None:
        """Raise UserError if the strategy is not one of the framework of this trainer, such as torch_impl/train.py."""
        if not program.startswith(self.traits.frameworks):
            raise UserError(
                f"{self.native} is a strategy of the other framework. Received: {self.traits.chosen_by} for {program}. "
                f"Use {self.traits.frameworks[0]}_impl/train.py"
            )


@dataclass(frozen=True)
class PartsConfig(Settings):
    """models divided among several ranks, by the strategies layers and split"""

    stages: Ranks | None = None
    """number of ranks that divide the layers of one model; additional ranks hold copies of it"""
    cut_after: str = "auto"
    """the last layer of each stage except the last stage, such as relu1 or relu1,relu2 (auto: balance the work of the
    stages)"""
    microbatches: LimitedCount = 4
    """number of parts of a batch, which pass through the stages one after another"""
    pipeline_schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """gpipe: all forward passes, then all backward passes; 1f1b: backward passes as early as possible, which keeps
    fewer activations"""
    model_ranks: Ranks | None = None
    """number of ranks that divide every layer of one model; additional ranks hold copies of it"""

    @property
    def count(self) -> int:
        """Ranks that hold one copy of the model together."""
        return self.stages or self.model_ranks or 1


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank whose computing takes `factor` times as long, in each update with this probability."""

    rank: int
    factor: float
    probability: float


@dataclass(frozen=True)
class BalanceConfig(Settings):
    """ranks of unequal speed"""

    shares: str | None = None
    """relative parts of the global batch for the ranks, in order, such as 2:1; auto: by speed, measured before
    training. Each rank gets at least one image. Gradients and averages are weighted by images, and validation and test
    are divided in the same way (None: equal parts)"""
    slow: str | None = None
    """make a rank a straggler, RANK:FACTOR[:PROBABILITY]: its forward and backward pass take FACTOR times as long,
    in every update or with this probability, drawn from the seed; the times of such a run are not compared"""
    slow_is_subject: Annotated[bool, NOTHING] = False
    """compare the times of a run with --slow, for experiments about stragglers"""

    @property
    def slows_beside_the_subject(self) -> bool:
        """Whether a straggler makes the times of a run no result."""
        return self.slow is not None and not self.slow_is_subject

    def __post_init__(self) -> None:
        if self.parts is not None and min(self.parts) <= 0:
            remedy = "Give a number above 0 for each rank, such as 2:1, or auto"
            raise UserError(f"--shares is not a ratio. Received: --shares {self.shares}. {remedy}")
        straggler = self.straggler
        if straggler and not (1 <= straggler.factor <= MOST_SLOW and 0 < straggler.probability <= 1):
            raise UserError(
                f"--slow does not describe a straggler. Received: --slow {self.slow}. Give RANK:FACTOR or "
                f"RANK:FACTOR:PROBABILITY, a factor from 1 to {MOST_SLOW}, such as 0:2 or 0:2:0.1"
            )

    def check_workers(self, workers: int) -> None:
        """Raise UserError if parts or straggler are not those of so many workers, the ranks without servers."""
        if self.parts is not None and len(self.parts) != workers:
            example = ":".join(["2", *["1"] * (workers - 1)])
            raise UserError(
                f"--shares needs one number for each worker. Received: --shares {self.shares} on {workers}. "
                f"Give one number per worker, such as {example}"
            )
        if self.straggler and self.straggler.rank >= workers:
            raise UserError(
                "the straggler is not one of the workers, which are numbered from 0. Received: "
                f"--slow {self.slow} on {workers}. Give a rank from 0 to {workers - 1}"
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
