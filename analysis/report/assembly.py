"""What a page is made of: chapters, first plots, title and facts."""

import shlex
from collections.abc import Callable, Sequence

from analysis.output.finding import Finding
from analysis.output.tables import Table
from analysis.questions import aa_test, check, compare, faults, frameworks, times
from analysis.questions.clouds import finding as clouds
from analysis.questions.energy import command as energy
from analysis.questions.hyperparameters import command as hyperparameters
from analysis.questions.scaling import command as scaling
from analysis.questions.strategies import command as strategies
from analysis.report import chapters as report_chapters
from analysis.report.page import Chapter, Page, facts_of
from analysis.runs.examples import NOTE as EXAMPLES
from analysis.runs.published import published_notes
from analysis.runs.table import Selection
from analysis.thesis import command as thesis
from common.utils.workers import side_by_side

Find = Callable[[Selection], Finding]
# Answers first, then what the runs were.
CHAPTERS: tuple[Find, ...] = (
    frameworks.find,
    clouds.find,
    scaling.find,
    strategies.find,
    energy.find,
    hyperparameters.find,
    times.find,
    compare.find,
    aa_test.find,
    faults.find,
    report_chapters.parity,
    check.find,
    report_chapters.machines,
    report_chapters.settings,
    report_chapters.commands,
    report_chapters.not_measured,
)
# The plots that open the page: time, by site where there are several, cost against time, accuracy.
FIRST_PLOTS = ("clouds-time", "clouds-cost-time", "frameworks-accuracy")
FIRST_PLOTS_OF_A_SITE = ("frameworks-time", *FIRST_PLOTS[1:])
MOST_NAMED = 5  # folders in the command shown at the top


def page_of(selection: Selection, *, folders: Sequence[str], examples: bool = False, title: str | None = None) -> Page:
    """Return the page about some runs.

    Args:
        selection: the runs.
        folders: their paths, as the user gave them.
        examples: whether the project's own runs are among them.
        title: None: one that names the models.
    """
    chapters = [*CHAPTERS]
    arguments = _arguments(selection, folders, examples=examples)
    if (selection.runs["origin"] == "imported").any():
        chapters.append(thesis.find)
    if selection.published:
        chapters.append(_published)
    first_plots = FIRST_PLOTS if selection.runs["site"].nunique() > 1 else FIRST_PLOTS_OF_A_SITE

    def chapter_of(find: Find) -> Chapter:
        finding = find(selection)
        return Chapter.of(finding, command=f"{finding.name} {arguments}", first_plots=first_plots)

    return Page(
        title=title or _title(selection),
        facts=_facts(selection, arguments, examples=examples),
        first_plots=first_plots,
        chapters=side_by_side(chapter_of, chapters),
        left_out=Table("", ["folder, and why"], [[line.removeprefix("left out: ")] for line in selection.left_out], {}),
    )


def _published(selection: Selection) -> Finding:
    """Return the published results among the runs, with their places and remarks."""
    notes = [[note.removeprefix("published ")] for note in published_notes(selection.published)]
    return Finding(
        name="published",
        question="Which published results are among these runs?",
        answer=f"From the sources {' and '.join(selection.published)}; they cannot be checked.",
        tables=[Table("Published results and claims", ["name, place, number of runs, remark"], notes, {})],
    )


def _title(selection: Selection) -> str:
    models = list(selection.runs["model"].unique())
    named = ", ".join(models[:3]) + (f" and {len(models) - 3} more models" if len(models) > 3 else "")
    return f"Keras and PyTorch on Horovod: {named}"


def _arguments(selection: Selection, folders: Sequence[str], *, examples: bool) -> str:
    """Return the arguments by which every command finds these runs."""
    named = [shlex.quote(folder) for folder in folders[:MOST_NAMED]]
    more = [f"and {len(folders) - MOST_NAMED} more"] if len(folders) > MOST_NAMED else []
    published = ["--published", *selection.published] if selection.published else []
    return " ".join([*named, *more, *published, *["--examples"][: int(examples)]])


def _facts(selection: Selection, arguments: str, *, examples: bool) -> dict[str, str]:
    contents = {
        "Runs": f"{len(selection.runs):,} run{'' if len(selection.runs) == 1 else 's'}",
        **({"Examples": EXAMPLES} if examples else {}),
    }
    return facts_of(contents, command=f"python -m analysis report {arguments}")
