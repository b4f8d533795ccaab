"""The report: at most 40 lines in the terminal, the verdict first; and a page.

The page has both models beside each other, and the first difference open. It loads and runs nothing.
"""

from pathlib import Path

from common.errors import user_errors
from common.run_folder.records import now
from common.twins.arrays import EQUAL
from common.twins.contract import PairSource
from common.twins.records import SIDES, Comparison, Row, listed
from common.twins.verdict import Verdict, shown_count
from common.utils.atomic import write_atomically
from common.utils.html_pages import page_environment

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


def write_page(file: Path, source: PairSource, comparison: Comparison, verdict: Verdict) -> None:
    """Write the page as one HTML file."""
    template = page_environment(Path(__file__).parent).get_template("page.html.jinja")
    causes: dict[tuple[str, str], list[str]] = {}
    for difference in verdict.differences:
        for parting in difference.partings:
            if parting.torch and parting.keras:
                kinds = causes.setdefault((parting.torch.place, parting.keras.place), [])
                kinds.append(f"{parting.where}: {difference.cause.kind}")
    html = template.render(
        source=source,
        verdict=verdict,
        created=now()[:16].replace("T", " ") + " UTC",
        unmatched=comparison.unmatched,
        rows=[_with_state(row, causes) for row in comparison.rows],
        facts=fact_lines(comparison, verdict),
    )
    with user_errors("writing the page"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, html)


def _with_state(row: Row, causes: dict[tuple[str, str], list[str]]) -> tuple[Row, str, list[str]]:
    """Return a row, whether it is alone, different, equal or constant, and the kinds of its causes."""
    if row.torch is None or row.keras is None:
        return row, "alone", []
    kinds = sorted(causes.get((row.torch.place, row.keras.place), []), key=lambda kind: kind.startswith("inside"))
    equal = "equal" if max(row.before, row.inside) <= EQUAL else "constant"
    return row, "different" if kinds else equal, kinds
