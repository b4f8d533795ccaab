"""What two models have in common, and what may be compared."""

from dataclasses import dataclass

from common.twins.causes import Cause, causes_of, is_constant
from common.twins.comparison import Comparison, Parting

EXIT_CODE_EQUAL, EXIT_CODE_DIFFERENT, EXIT_CODE_UNDECIDED = 0, 1, 2
# Most that whole models may be apart if no layer is: rounding adds up, more so with constants in float32.
TOLERANCES = {
    "outputs in inference": (1e-9, 1e-5),
    "outputs in training": (1e-9, 1e-5),
    "gradients": (1e-7, 1e-4),
    "losses of the updates": (1e-8, 1e-4),
    "arrays after the updates": (1e-6, 1e-2),
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A cause with the places where it applies, the first in full."""

    cause: Cause
    parting: Parting
    places: list[str]

    @property
    def place(self) -> str:
        """The layer of both, as the report names it."""
        return self.places[0]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer.

    Attributes:
        level: equal, training, numbers, work or undecided.
        headline: the answer, in a line.
        compare: what may be compared.
    """

    level: str
    headline: str
    compare: str
    exit_code: int
    found: list[Found]
    constants: int
    training: list[tuple[str, str, str]]


def judge(comparison: Comparison) -> Verdict:
    """Return the verdict on a comparison."""
    explained = [(parting, causes_of(parting)) for parting in comparison.partings]
    real = [(parting, causes) for parting, causes in explained if not is_constant(parting, causes)]
    constants = len(explained) - len(real)
    training = [tuple(one) for one in comparison.training]
    training += _of_the_whole(comparison, layers_differ=bool(real), constants=bool(constants))
    found = _grouped(real)
    level = _level(comparison, found, training)
    headline, compare = _words(level, comparison)
    codes = {"equal": EXIT_CODE_EQUAL, "undecided": EXIT_CODE_UNDECIDED}
    return Verdict(
        level=level,
        headline=headline,
        compare=compare,
        exit_code=codes.get(level, EXIT_CODE_DIFFERENT),
        found=found,
        constants=constants,
        training=[(kind, text, remedy) for kind, text, remedy in training],
    )


def _of_the_whole(comparison: Comparison, *, layers_differ: bool, constants: bool) -> list[tuple[str, str, str]]:
    """Return what the whole models do differently although no layer does."""
    if layers_differ:
        return []
    return [
        ("whole", f"{name}: {difference:.1e} apart{f', most at {place}' if place else ''}, although no layer is", "")
        for name, (difference, place) in comparison.whole.differences.items()
        if difference > TOLERANCES[name][constants]
    ]


def _grouped(real: list[tuple[Parting, list[Cause]]]) -> list[Found]:
    groups: dict[tuple[str, ...], list[tuple[Parting, Cause]]] = {}
    for parting, causes in real:
        for cause in causes:
            text = cause.text.partition("; shapes")[0]
            groups.setdefault((cause.kind, text, parting.where, parting.mode), []).append((parting, cause))
    return [
        Found(cause=same[0][1], parting=same[0][0], places=[place_of(parting) for parting, _ in same])
        for same in groups.values()
    ]


def place_of(parting: Parting) -> str:
    """Return "before PyTorch's layer / Keras' layer"."""
    if parting.torch is None or parting.keras is None:
        return "after the last layer"
    return f"{parting.where} {parting.torch.place} / {parting.keras.place}"


def _level(comparison: Comparison, found: list[Found], training: list[tuple[str, ...]]) -> str:
    if comparison.unsupported:
        return "undecided"
    work = comparison.multiply_adds
    if (
        comparison.only_torch
        or comparison.only_keras
        or comparison.tied
        or comparison.stopped_after
        or work["torch"] != work["keras"]
    ):
        return "work"
    if any(one.cause.work for one in found):
        return "work"
    if any(one.parting.mode == "inference" for one in found):
        return "numbers"
    if any(kind == "whole" and text.startswith("outputs in inference") for kind, text, _ in training):
        return "numbers"
    return "training" if found or training else "equal"


def _words(level: str, comparison: Comparison) -> tuple[str, str]:
    work = comparison.multiply_adds
    both = (
        f"{shown_count(work['torch'])} and {shown_count(work['keras'])} multiply-adds per sample in PyTorch and Keras"
    )
    return {
        "equal": ("EQUAL: the two models are the same.", "Compare speed and accuracy."),
        "training": (
            "EQUAL, BUT NOT IN TRAINING: the two models compute the same outputs, but train differently.",
            "Compare speed. Compare accuracy only with these details named beside it.",
        ),
        "numbers": (
            "DIFFERENT NUMBERS: the two models have the same arrays and do the same work, but the results differ.",
            "Compare speed. Do not compare accuracy.",
        ),
        "work": (
            "DIFFERENT WORK: these are two programs, not one model in two frameworks.",
            f"Compare neither speed nor accuracy: {both}.",
        ),
        "undecided": (
            "NOT DECIDED: some layers cannot be matched.",
            "Name their arrays in WEIGHTS of the model file: {'torch.name': 'keras/path'}.",
        ),
    }[level]


def shown_count(number: int) -> str:
    """Return "4.089 G" or "139,264"."""
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3f} {unit}"
    return f"{number:,}"
