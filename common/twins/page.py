"""The page: what differs, the first open, and both models beside each other. It loads and runs nothing."""

from dataclasses import dataclass
from pathlib import Path

from common.errors import user_errors
from common.run_folder.records import now
from common.twins.arrays import EQUAL
from common.twins.comparison import Comparison, Row, Step
from common.twins.contract import PairSource
from common.twins.report import fact_lines, size_of, unmatched_lines
from common.twins.verdict import Verdict
from common.utils.atomic import write_atomically
from common.utils.html_pages import page_environment


@dataclass(frozen=True, kw_only=True)
class RowView:
    """A row of the page: what each side has, and how far apart input and output are."""

    torch: Step | None
    keras: Step | None
    before: str
    inside: str
    state: str  # equal, constant, different or alone
    causes: list[str]


def write_page(file: Path, source: PairSource, comparison: Comparison, verdict: Verdict) -> None:
    """Write the page as one HTML file."""
    template = page_environment(Path(__file__).parent).get_template("page.html.jinja")
    html = template.render(
        source=source,
        verdict=verdict,
        created=now()[:16].replace("T", " ") + " UTC",
        unmatched=unmatched_lines(comparison, most=8),
        found=[(one, size_of(one.parting)) for one in verdict.found],
        rows=_rows(comparison, verdict),
        facts=fact_lines(comparison, verdict),
    )
    with user_errors("writing the page"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, html)


def _rows(comparison: Comparison, verdict: Verdict) -> list[RowView]:
    causes: dict[str, list[str]] = {}
    for found in verdict.found:
        for place in found.places:
            causes.setdefault(place, []).append(f"{found.parting.where}: {found.cause.kind}")
    return [_row(row, causes) for row in comparison.rows]


def _row(row: Row, causes: dict[str, list[str]]) -> RowView:
    if row.torch is None or row.keras is None:
        return RowView(torch=row.torch, keras=row.keras, before="", inside="", state="alone", causes=[])
    both = f"{row.torch.place} / {row.keras.place}"
    own = [text for where in ("before", "inside") for text in causes.get(f"{where} {both}", [])]
    apart = [one if one is not None else float("inf") for one in (row.before, row.inside)]
    state = "different" if own else "equal" if max(apart) <= EQUAL else "constant"
    shown = ["other shape" if one is None else f"{one:.1e}" for one in (row.before, row.inside)]
    return RowView(torch=row.torch, keras=row.keras, before=shown[0], inside=shown[1], state=state, causes=own)
