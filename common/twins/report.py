"""The report in the terminal: at most 40 lines, the verdict first."""

from collections.abc import Sequence

from common.twins.comparison import Comparison, Parting
from common.twins.verdict import Found, Verdict, shown_count

MOST_LINES = 40
MOST_CAUSES, MOST_LISTED = 6, 3
SIDES = {"torch": "PyTorch", "keras": "Keras"}


def report_lines(comparison: Comparison, verdict: Verdict, *, page: str) -> list[str]:
    """Return the report: as many causes as there is room for.

    Args:
        page: the file with all of them; empty: none was written.
    """
    lines: list[str] = []
    for most in range(MOST_CAUSES, 0, -1):
        lines = _lines(comparison, verdict, page=page, most=most)
        if len(lines) <= MOST_LINES:
            break
    return lines


def _lines(comparison: Comparison, verdict: Verdict, *, page: str, most: int) -> list[str]:
    lines = [verdict.headline, verdict.compare, "", *unmatched_lines(comparison, most=MOST_LISTED)]
    if verdict.found:
        lines.append("what differs, at PyTorch's layer / Keras' layer:")
    for number, one in enumerate(verdict.found[:most], 1):
        lines += _found_lines(number, one)
    if len(verdict.found) > most:
        lines.append(f" and {len(verdict.found) - most} more causes, on the page")
    if verdict.training:
        lines.append("in training alone:")
    for _, text, remedy in verdict.training[:most]:
        lines += [f"  {text}", *_remedy(remedy, 4)]
    if len(verdict.training) > most:
        lines.append(f"  and {len(verdict.training) - most} more, on the page")
    lines += [*([""] if lines[-1] else []), *fact_lines(comparison, verdict)]
    return [*lines, f"page: {page}"] if page else lines


def _found_lines(number: int, found: Found) -> list[str]:
    size = size_of(found.parting)
    more = f", and {len(found.places) - 1} more like it" if len(found.places) > 1 else ""
    mode = ", only in training" if found.parting.mode == "training" else ""
    return [
        f" {number}. {found.place}: {found.cause.kind}, {size}{mode}{more}",
        f"    {found.cause.text}",
        *_remedy(found.cause.remedy, 4),
    ]


def size_of(parting: Parting) -> str:
    """Return how far the two are apart."""
    return f"{parting.difference:.1e} apart" if parting.difference is not None else "of other shapes"


def _remedy(remedy: str, indent: int) -> list[str]:
    return [f"{' ' * indent}equal with {remedy}"] if remedy else []


def unmatched_lines(comparison: Comparison, *, most: int) -> list[str]:
    """Return what only one side has, and what cannot be matched; at most so many names each."""
    lines = [f"cannot be matched: {name} ({kind})" for name, kind in list(comparison.unsupported.items())[:most]]
    for side, arrays in (("PyTorch", comparison.only_torch), ("Keras", comparison.only_keras)):
        if arrays:
            named = [f"{name} {tuple(shape)}" for name, shape in arrays.items()]
            lines.append(f"only in {side}: {counted_list(named, most=most)}")
            if side == "Keras" and all(name.endswith("/bias") for name in arrays):
                lines += _remedy("Keras: use_bias=False", 4)
    if comparison.stopped_after:
        lines.append(f"compared up to {comparison.stopped_after}; what follows does not work with PyTorch's shapes")
    if comparison.tied:
        lines.append(f"one array in PyTorch, several in Keras: {counted_list(comparison.tied, most=most)}")
    return lines


def counted_list(names: Sequence[str], *, most: int = MOST_LISTED) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def fact_lines(comparison: Comparison, verdict: Verdict) -> list[str]:
    """Return what was counted and measured."""
    arrays, matched, parameters = comparison.arrays, comparison.matched, comparison.parameters
    layers = sum(row.torch is not None and row.keras is not None for row in comparison.rows)
    lines = [
        f"parameters: {parameters['torch']:,} in PyTorch, {parameters['keras']:,} in Keras; multiply-adds per sample: "
        f"{shown_count(comparison.multiply_adds['torch'])} and {shown_count(comparison.multiply_adds['keras'])}",
        f"arrays matched: {matched['torch']} of {arrays['torch']} and {matched['keras']} of {arrays['keras']}"
        + (f" ({comparison.tried} other choices tried)" if comparison.tried else ""),
        f"layers compared one by one: {layers}"
        + (
            f"; equal but for constants that TensorFlow keeps in float32: {verdict.constants}"
            if verdict.constants
            else ""
        ),
    ]
    if comparison.guessed:
        lines.append(f"matched by shape alone: {counted_list(comparison.guessed)}")
    whole = comparison.whole
    if whole.differences:
        shown = ", ".join(f"{name} {value:.1e}" for name, (value, _) in whole.differences.items())
        lines.append(f"whole models, relative differences: {shown}")
    if whole.zeros:
        lines.append(f"gradients that are zero but for rounding, as of biases before a normalization: {whole.zeros}")
    if whole.updates:
        fewer = " (one, because its passes take long)" if whole.updates == 1 else ""
        lines.append(f"AdamW updates: {whole.updates}{fewer}")
    seconds, memory = comparison.seconds, comparison.memory_bytes
    lines.append("; ".join(f"{SIDES[s]}: {seconds[s]:.0f} s, {memory[s] / 1e9:.1f} GB" for s in SIDES))
    return lines
