"""Settings of ranks of unequal speed."""

import re
from dataclasses import dataclass
from typing import Annotated

from common.config.rules import NOTHING, Settings, require

MOST_SLOW = 1000  # factor of a straggler
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"


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
        super().__post_init__()
        require(
            self.parts is None or min(self.parts) > 0,
            problem="--shares is not a ratio",
            received=f"--shares {self.shares}",
            remedy="Give a number above 0 for each rank, such as 2:1, or auto",
        )
        straggler = self.straggler
        require(
            straggler is None or (1 <= straggler.factor <= MOST_SLOW and 0 < straggler.probability <= 1),
            problem="--slow does not describe a straggler",
            received=f"--slow {self.slow}",
            remedy="Give RANK:FACTOR or RANK:FACTOR:PROBABILITY, "
            f"a factor from 1 to {MOST_SLOW}, such as 0:2 or 0:2:0.1",
        )
        require(
            not self.slow_is_subject or self.slow is not None,
            problem="--slow-is-subject needs a straggler",
            received="--slow-is-subject without --slow",
            remedy="Give --slow RANK:FACTOR, or leave it out",
        )

    def check_workers(self, workers: int) -> None:
        """Raise UserError if parts or straggler are not those of so many workers, the ranks without servers."""
        require(
            self.parts is None or len(self.parts) == workers,
            problem="--shares needs one number for each worker",
            received=f"--shares {self.shares} on {workers}",
            remedy=f"Give one number per worker, such as {':'.join(['2', *['1'] * (workers - 1)])}",
        )
        require(
            self.straggler is None or self.straggler.rank < workers,
            problem="the straggler is not one of the workers, which are numbered from 0",
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
