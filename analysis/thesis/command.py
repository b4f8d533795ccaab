"""`python -m analysis thesis`: the tables and figures of the thesis from its run folders, with published values.

Every number is computed from the folders that `import-thesis` writes and compared with the one in `published.toml`.
Where they differ, the reason is shown.
"""

from collections.abc import Sequence
from typing import Any

from analysis.output.finding import Finding, Plot, add_question, brief
from analysis.output.tables import Table
from analysis.runs.table import Selection, runs_in
from analysis.runs.validity import flags_of
from analysis.thesis import comparison
from analysis.thesis import plots as thesis_plots
from analysis.thesis.comparison import BASE, ENVIRONMENTS, Compared, ThesisRuns
from common.run_folder.power_file import POWER_FILE

_TIMED = "cpu-r1, gpu1-r*, gpu1-wrapped-r*, gpu2-r*"
# Recomputed tables: title, function, format of the numbers, run folders needed.
_FIGURES = (
    ("Table 3.1: both frameworks on MNIST", comparison.first_figures, ".2f", "table31-*"),
    ("Figure 3.3: 2 GPUs and the CPU against 1 GPU", comparison.hybrids, ",.2f", "hybrid-r1 and hybrid-gpu1-r1"),
    ("Figures 3.5 and 3.6: resolution and batch", comparison.studies, ",.1f", "size*-batch*"),
    ("Figure 3.7: share of validation samples", comparison.shares, ",.2f", "validation*percent"),
    ("Figure 4.3: times (means over runs)", comparison.times, ",.2f", _TIMED),
    ("Figure 4.4: speedups and efficiency (of mean times)", comparison.speedups, ".4f", _TIMED),
    ("Figure 4.6: accuracy on the test samples", comparison.accuracies, ".2f", _TIMED),
    ("Table 4.2 and figure 4.12: energy (means over metered runs)", comparison.energies, ",.3f", "*-energy*"),
    ("Table 4.2 and figure 4.12: energy-delay products", comparison.products, ".4f", "*-energy*"),
)  # fmt: skip


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    add_question(commands, "thesis", find, "tables and figures of the thesis from its imported runs")


def find(selection: Selection) -> Finding:
    """Recompute what these runs allow; notes name the rest."""
    thesis = comparison.thesis_runs(selection)
    question = "Do the figures of the thesis follow from its raw files?"
    if not (thesis.timed or thesis.metered or thesis.single):
        answer = (
            "None of these runs is from the thesis. Make them with "
            "`python -m analysis import-thesis THESIS --folder RUNS`."
        )
        return Finding(name="thesis", question=question, answer=answer)
    flags = flags_of(runs_in(selection.runs[selection.runs["origin"] == "imported"]), [])
    figures = {title: of(thesis) for title, of, _, _ in _FIGURES}
    parameters = comparison.parameter_table(thesis)
    tables = [comparison.table_of(title, figures[title], form) for title, _, form, _ in _FIGURES if figures[title]]
    tables[_place(tables) : _place(tables)] = [parameters] if parameters else []
    return Finding(
        name="thesis",
        question=question,
        answer=_answer(thesis, [one for of_title in figures.values() for one in of_title]),
        tables=tables,
        plots=_plots(thesis, flags=flags),
        flags=flags,
        notes=[
            *(f"{title}: no runs to compute it from ({needs})" for title, *_, needs in _FIGURES if not figures[title]),
            *([] if parameters else [f"Table 4.1: no runs to read it from ({BASE}-r*)"]),
            *_missing_power(thesis),
            "hollow diamonds are published values; a value agrees if it equals the printed one to its last digit",
        ],
    )


def _place(tables: Sequence[Table]) -> int:
    """Return the index of table 4.1: before the first table of chapter 4."""
    return next((place for place, table in enumerate(tables) if " 4." in table.title), len(tables))


def _answer(thesis: ThesisRuns, compared: Sequence[Compared]) -> str:
    printed = [one for one in compared if one.agrees is not None]
    agreeing = sum(one.agrees is True for one in printed)
    explained = sum(one.agrees is False and one.why is not None for one in printed)
    words = [f"{agreeing} of {len(printed)} published values follow from the raw files to their last digit"]
    if differ := len(printed) - agreeing:
        known = "all" if explained == differ else "none" if not explained else "some"
        words.append(f"{differ} differ, {known} of them for a known reason")
    sentences = [f"{'; '.join(words)}."]
    for name, base in ((BASE, "cpu"), ("gpu2", BASE)):
        of_base, total = thesis.mean_total(base), thesis.mean_total(name)
        if of_base and total:
            sentences.append(f"{ENVIRONMENTS[name]} is {of_base / total:.3f} times as fast as {ENVIRONMENTS[base]}.")
    return brief(sentences)


def _missing_power(thesis: ThesisRuns) -> list[str]:
    """Return a note per half of figures 4.7 and 4.8 that cannot be drawn."""
    halves = {
        "gpu1": "4.7, left",
        "cpu": "4.7, right",
        "gpu1-wrapped": "4.8, left",
        "gpu2": "4.8, right",
    }
    return [
        f"figure {half} half: not drawn, the power over time of {ENVIRONMENTS[name]} is missing"
        + (", only its sums are recorded" if thesis.metered[name] else "")
        for name, half in halves.items()
        if not any((run.folder / POWER_FILE).is_file() for run in thesis.metered[name])
    ]


def _plots(thesis: ThesisRuns, *, flags: list[str]) -> list[Plot]:
    found = [
        thesis_plots.plot_hybrid(thesis),
        *thesis_plots.plot_studies(thesis),
        thesis_plots.plot_shares(thesis),
        thesis_plots.plot_times(thesis),
        thesis_plots.plot_speedups(thesis),
        thesis_plots.plot_curves(thesis),
        thesis_plots.plot_accuracies(thesis),
        *thesis_plots.plot_power(thesis, flags=flags),
        thesis_plots.plot_energy(thesis),
    ]
    return [plot for plot in found if plot is not None]
