"""CTE or AWS, from what is known without a run: published, computed and projected findings, and all of them as one.

Beside them, for a page: how far the projections can be trusted, and the project's own runs.
"""

from collections.abc import Sequence
from dataclasses import replace

from analysis.clouds.hardware import find_hardware
from analysis.clouds.money import find_money
from analysis.clouds.projected import find_projected
from analysis.output.finding import Finding
from analysis.projection.study import read_study
from analysis.questions import frameworks
from analysis.questions.clouds.pricing import Pricing
from analysis.questions.projection import command as projection
from analysis.runs.examples import NOTE, example_folders
from analysis.runs.reading import load_runs

QUESTION = "CTE-POWER or AWS?"


def known_findings(pricing: Pricing) -> list[Finding]:
    """Return the published comparison with what explains it, projections of its ratio, and money and time."""
    return [find_hardware(pricing.sites), find_projected(pricing.sites), find_money(pricing)]


def findings_behind() -> list[Finding]:
    """Return the study that projections are fitted to, and both frameworks in the runs that come with the project."""
    ours = frameworks.find(load_runs(example_folders()))
    return [projection.find(read_study()), replace(ours, notes=[NOTE, *ours.notes])]


def as_one(findings: Sequence[Finding]) -> Finding:
    """Return them as one finding, for the terminal: an answer a line."""
    return Finding(
        name="clouds",
        question=QUESTION,
        answer="\n".join(one.answer for one in findings),
        tables=[table for one in findings for table in one.tables],
        plots=[plot for one in findings for plot in one.plots],
        notes=[note for one in findings for note in one.notes],
    )
