"""The page: what differs, the first open, and both models beside each other. It loads and runs nothing."""

from pathlib import Path

from common.errors import user_errors
from common.run_folder.records import now
from common.twins.arrays import EQUAL
from common.twins.comparison import Comparison, Row
from common.twins.contract import PairSource
from common.twins.report import fact_lines
from common.twins.verdict import Verdict
from common.utils.atomic import write_atomically
from common.utils.html_pages import page_environment


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
