"""The page."""

from pathlib import Path

from common.twins.comparison import Comparison
from common.twins.contract import PairSource
from common.twins.verdict import Verdict


def write_page(file: Path, source: PairSource, comparison: Comparison, verdict: Verdict) -> None:
    """Write the page."""
