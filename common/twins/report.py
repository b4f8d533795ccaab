"""The report in the terminal: at most 40 lines, the verdict first. The page has the same lines, and all layers."""

from common.twins.comparison import SIDES, Comparison, listed
from common.twins.verdict import Verdict, shown_count

MOST_LINES = 40
MOST_CAUSES, MOST_LISTED = 6, 3


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
    lines = [verdict.headline, verdict.compare, ""]
    for cause in comparison.unmatched:
        lines += [cause.line(most=MOST_LISTED), *_remedy(cause.remedy)]
    if verdict.differences:
        lines.append("what differs, at PyTorch's layer / Keras' layer:")
    for number, difference in enumerate(verdict.differences[:most], 1):
        lines.append(f" {number}. {difference.place}: {difference.cause.kind}, {difference.size}")
        lines += [f"    {difference.text}", *_remedy(difference.cause.remedy)]
    if len(verdict.differences) > most:
        lines.append(f" and {len(verdict.differences) - most} more causes, on the page")
    if verdict.training:
        lines.append("in training alone:")
    for cause in verdict.training[:most]:
        lines += [f"  {cause.text}", *_remedy(cause.remedy)]
    if len(verdict.training) > most:
        lines.append(f"  and {len(verdict.training) - most} more, on the page")
    lines += [*([""] if lines[-1] else []), *fact_lines(comparison, verdict)]
    return [*lines, f"page: {page}"] if page else lines


def _remedy(remedy: str) -> list[str]:
    return [f"    equal with {remedy}"] if remedy else []


def fact_lines(comparison: Comparison, verdict: Verdict) -> list[str]:
    """Return what was counted and measured."""
    torch, keras, whole = comparison.sides["torch"], comparison.sides["keras"], comparison.whole
    work = [shown_count(side.multiply_adds) for side in (torch, keras)]
    tried = f" ({comparison.tried} other choices tried)" if comparison.tried else ""
    constants = f"; equal but for constants that TensorFlow keeps in float32: {verdict.constants}"
    lines = [
        f"parameters: {torch.parameters:,} in PyTorch, {keras.parameters:,} in Keras; multiply-adds per sample: "
        f"{work[0]} and {work[1]}",
        f"arrays matched: {torch.matched} of {torch.arrays} and {keras.matched} of {keras.arrays}{tried}",
        f"layers compared one by one: {sum(row.both for row in comparison.rows)}"
        f"{constants if verdict.constants else ''}",
    ]
    if comparison.guessed:
        lines.append(f"matched by shape alone: {listed(comparison.guessed, most=MOST_LISTED)}")
    if whole.differences:
        shown = ", ".join(f"{name} {value:.1e}" for name, (value, _) in whole.differences.items())
        lines.append(f"whole models, relative differences: {shown}")
    if whole.zeros:
        lines.append(f"gradients that are zero but for rounding, as of biases before a normalization: {whole.zeros}")
    if whole.updates:
        fewer = " (one, because its passes take long)" if whole.updates == 1 else ""
        lines.append(f"AdamW updates: {whole.updates}{fewer}")
    measured = (
        f"{SIDES[name]}: {side.seconds:.0f} s, {side.memory_bytes / 1e9:.1f} GB"
        for name, side in comparison.sides.items()
    )
    return [*lines, "; ".join(measured)]
