"""Differences planted in the models of `tests/common/twins/planted/`, and what the comparison says of them."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twins_cases import compared, planted_source

from common.twins.records import Comparison
from common.twins.verdict import Verdict, judge

FOLDER = Path(__file__).resolve().parents[1] / "common" / "twins" / "planted"
MODELS = sorted(file.stem for file in FOLDER.glob("*.py"))


@dataclass(frozen=True)
class Outcome:
    """What was said of a model with a planted difference, or of one that is written otherwise.

    Attributes:
        found: whether the kind of cause and the place are those that were planted; of a rewrite, whether it is equal.
    """

    plant: str
    found: bool
    planted: bool
    verdict: Verdict | None
    error: str = ""


def plants_of(model: str) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Return the planted differences (name -> kind, part of the place) and the rewrites of a model."""
    spec: Any = importlib.util.spec_from_file_location("planted", FOLDER / f"{model}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PLANTS, ["", *module.REWRITES]


def outcomes(model: str, folder: Path, *, only: list[str] | None = None, threads: int = 1) -> list[Outcome]:
    """Compare a model with each of its planted differences, and its rewrites."""
    plants, rewrites = plants_of(model)
    names = only or [*plants, *rewrites]
    sources = {name or "none": planted_source(FOLDER / f"{model}.py", name, folder / "files") for name in names}
    found = compared(sources, folder / "work", threads=threads)
    return [_outcome(name, found[name or "none"], plants.get(name)) for name in names]


def _outcome(name: str, comparison: Comparison | str, planted: tuple[str, str] | None) -> Outcome:
    if isinstance(comparison, str):
        return Outcome(name, False, planted is not None, None, comparison)
    verdict = judge(comparison)
    if planted is None:
        return Outcome(name, verdict.level == "equal", False, verdict)
    kind, place = planted
    said = [(difference.cause.kind, difference.place) for difference in verdict.differences]
    said += [(cause.kind, cause.text) for cause in verdict.training]
    said += [(cause.kind, name) for cause in comparison.unmatched for name in cause.names]
    return Outcome(name, any(one == kind and place in where for one, where in said), True, verdict)
