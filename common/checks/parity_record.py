"""`parity.json`: the comparisons that prove that both frameworks train alike, with differences and tolerances.

`python -m launch parity` writes it, `python -m analysis parity` shows it. Differences are relative to the largest entry
of the reference, the worst of all arrays compared.
"""

from dataclasses import dataclass, field
from pathlib import Path

from common.checks.parity_cases import Dtype
from common.config import OneDNN
from common.json_records import Record, result_file
from common.run_folder.environment import Environment
from common.run_folder.records import Timestamp

PARITY_FILE = "parity.json"


@dataclass(frozen=True, kw_only=True)
class ArrayComparison(Record):
    """Two sets of arrays, compared.

    Attributes:
        what: outputs, gradients, weights after some updates ...
        optimizer: None where none is at work.
        between: whose arrays, the second being the reference: `keras np 1`, `torch np 1`.
        dropout: none: the model has none; off: it has, and it was switched off.
        difference: relative, of the worst array; infinite for other names or shapes.
        tolerance: None: shown, not judged.
    """

    model: str
    what: str
    optimizer: str | None
    between: tuple[str, str]
    dropout: str
    dtype: Dtype
    difference: float
    where: str
    tolerance: float | None

    @property
    def differs(self) -> bool:
        """Whether the difference is larger than it may be."""
        return self.tolerance is not None and not self.difference <= self.tolerance

    @property
    def description(self) -> str:
        """What was compared and how far it is apart, in a line."""
        about = ", ".join(part for part in (self.model, self.what, self.optimizer, self.dtype) if part)
        limit = "not judged" if self.tolerance is None else f"may be {self.tolerance:.0e}"
        return f"{about}, {' against '.join(self.between)}: {self.difference:.1e} at {self.where}, {limit}"


@dataclass(frozen=True, kw_only=True)
class Curve(Record):
    """Two trainings update by update.

    Attributes:
        exchanged: whether each update starts from the state that the reference had before it.
        losses: (updates,) of both, mean over the global batch, before each update.
        weights_difference: (updates,) relative difference of the weights after each update; empty if not kept.
    """

    model: str
    optimizer: str
    between: tuple[str, str]
    dtype: Dtype
    exchanged: bool
    losses: tuple[list[float], list[float]]
    weights_difference: list[float]


@dataclass(frozen=True, kw_only=True)
class ParitySettings(Record):
    """What was asked for."""

    models: list[str]
    optimizers: list[str]
    np: list[int]
    updates: int
    exchanged_updates: int
    controller: str
    dataset: str
    epochs: int
    onednn: OneDNN = "framework"  # as it was before it was a setting


@dataclass(frozen=True, kw_only=True)
class FinishedPart(Record):
    """A part of the proofs that is done, with the number of comparisons and curves that there were after it."""

    name: str
    comparisons: int
    curves: int


@dataclass(frozen=True, kw_only=True)
class ParityRecord(Record):
    """`parity.json`; `ended_at` is None until all proofs are done: also if they were interrupted."""

    schema_version: int
    started_at: Timestamp
    ended_at: Timestamp | None
    settings: ParitySettings
    environment: Environment
    comparisons: list[ArrayComparison] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # run folders beside this file
    parts: list[FinishedPart] = field(default_factory=list)  # in their order; proofs are resumed after the last one


PROOFS = result_file(ParityRecord, command="python -m launch parity")


def read_parity(folder: Path) -> ParityRecord:
    """Read and validate `parity.json`.

    Raises:
        UserError: it is missing, or does not follow the schema.
    """
    return PROOFS.read(folder / PARITY_FILE)
