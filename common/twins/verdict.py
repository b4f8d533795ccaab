"""What two models have in common, and what may be compared."""

from dataclasses import dataclass

from common.twins.arrays import CONSTANTS
from common.twins.causes import UNEXPLAINED
from common.twins.records import LEVELS, Cause, Comparison, Parting

EXIT_CODES = {"equal": 0, "undecided": 2}  # of others 1
# Most that whole models may be apart if no layer is: rounding adds up, more so with constants in float32.
TOLERANCES = {
    "outputs in inference": (1e-9, 1e-5),
    "outputs in training": (1e-9, 1e-5),
    "gradients": (1e-7, 1e-4),
    "losses of the updates": (1e-8, 1e-4),
    "arrays after the updates": (1e-6, 1e-2),
}
WORDS = {
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
        "Compare neither speed nor accuracy: {} and {} multiply-adds per sample in PyTorch and Keras.",
    ),
    "undecided": (
        "NOT DECIDED: some layers cannot be matched.",
        "Name their arrays in WEIGHTS of the model file: {{'torch.name': 'keras/path'}}.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A cause with the partings that it explains."""

    cause: Cause
    partings: list[Parting]

    @property
    def place(self) -> str:
        """The first, by the layer of both."""
        return self.partings[0].place

    @property
    def size(self) -> str:
        """How far the two are apart at the first, and how many more there are."""
        first, more = self.partings[0], len(self.partings) - 1
        apart = "of other shapes" if first.shapes else f"{first.difference:.1e} apart"
        mode = ", only in training" if first.mode == "training" else ""
        return apart + mode + (f", and {more} more like it" if more else "")

    @property
    def text(self) -> str:
        """What each side has, at the first."""
        shapes = self.partings[0].shapes
        return f"{self.cause.text}; {shapes}" if shapes else self.cause.text

    @property
    def level(self) -> str:
        """Of LEVELS."""
        if self.cause.level == "work" or any(parting.shapes for parting in self.partings):
            return "work"
        return "training" if self.partings[0].mode == "training" else self.cause.level


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer."""

    level: str  # of LEVELS
    headline: str  # the answer, in a line
    compare: str  # what may be compared
    exit_code: int
    differences: list[Difference]  # of layers
    training: list[Cause]  # in training alone, or of the whole models beyond what layers explain
    constants: int  # layers that are equal but for constants in float32


def judge(comparison: Comparison) -> Verdict:
    """Return the verdict on a comparison."""
    partings = [parting for parting in comparison.partings if not _is_constant(parting)]
    constants = len(comparison.partings) - len(partings)
    training = list(comparison.training)
    if not partings:
        training += _whole_causes(comparison, constants=bool(constants))
    differences = _grouped(partings)
    work = [side.multiply_adds for side in comparison.sides.values()]
    causes: list[Difference | Cause] = [*differences, *training, *comparison.unmatched]
    levels = ["equal" if work[0] == work[1] else "work", *(cause.level for cause in causes)]
    level = max(levels, key=LEVELS.index)
    headline, compare = WORDS[level]
    return Verdict(
        level=level,
        headline=headline,
        compare=compare.format(*map(shown_count, work)),
        exit_code=EXIT_CODES.get(level, 1),
        differences=differences,
        training=training,
        constants=constants,
    )


def _is_constant(parting: Parting) -> bool:
    """Return whether a difference is that of a constant which TensorFlow keeps in float32."""
    explained = parting.where == "inside" and any(cause.kind != UNEXPLAINED for cause in parting.causes)
    return parting.difference <= CONSTANTS and not explained


def _whole_causes(comparison: Comparison, *, constants: bool) -> list[Cause]:
    """Return what the whole models do differently although no layer does."""
    return [
        Cause(
            kind="whole",
            text=f"{name}: {difference:.1e} apart{f', most at {place}' if place else ''}, although no layer is",
            level="numbers" if name == "outputs in inference" else "training",
        )
        for name, (difference, place) in comparison.whole.differences.items()
        if difference > TOLERANCES[name][constants]
    ]


def _grouped(partings: list[Parting]) -> list[Difference]:
    """Return what differs, equal causes once."""
    groups: dict[tuple[str, ...], Difference] = {}
    for parting in partings:
        for cause in parting.causes:
            key = (cause.kind, cause.text, parting.where, parting.mode)
            groups.setdefault(key, Difference(cause=cause, partings=[])).partings.append(parting)
    return list(groups.values())


def shown_count(number: int) -> str:
    """Return "4.089 G" or "139,264"."""
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3f} {unit}"
    return f"{number:,}"
