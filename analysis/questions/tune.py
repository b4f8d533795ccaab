"""`python -m analysis tune`: which settings of speed pay on this host, from the runs of `python -m launch tune`.

python -m analysis tune runs/tune-torch-cnn-np2                           the time of each, as a ratio to the default's
python -m analysis tune runs/tune-torch-cnn-np2 --recipe-out tuned.toml   those that are shown to be faster
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.output.finding import Finding, add_question
from analysis.output.recipes import toml_table, write_new
from analysis.output.tables import Table, effect_cells, shown_interval
from analysis.runs.cells import Cell, cells_of
from analysis.runs.labels import framework_label
from analysis.runs.settings import TUNED
from analysis.runs.table import Selection
from analysis.runs.validity import flags_of, many_comparisons
from analysis.stats.inference import Effect, ratio
from common.config import SPEED_SETTINGS, Config
from common.errors import UserError
from common.utils.command_line import path

_DEFAULTS = Config().as_dict()


@dataclass(frozen=True)
class Trial:
    """A cell beside the one of default settings.

    Attributes:
        settings: of speed, that are no defaults.
        time: as a ratio to the default's.
    """

    cell: Cell
    settings: Mapping[str, Any]
    time: Effect | None

    @property
    def words(self) -> str:
        """What it tries."""
        changed = ", ".join(f"{name} {str(value).lower()}" for name, value in self.settings.items())
        if not changed:  # nothing was chosen: it shows the noise of the others
            return "the defaults again"
        return f"together: {changed}" if self.cell.is_tuned else changed

    @property
    def verdict(self) -> str:
        """Whether it is shown to be faster or slower than the default: the interval excludes 1."""
        if self.time is None or self.time.interval is None:
            return "too few runs"
        if self.time.interval.contains(1.0):
            return "not shown"
        return "faster" if self.time.estimate < 1 else "slower"


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_question(
        commands, "tune", find, "settings of speed against the defaults, from runs of `launch tune`",
        keywords=["recipe_out"],
    )  # fmt: skip
    parser.add_argument("--recipe-out", type=path, metavar="FILE", help="write those that pay there, as a recipe")


def find(selection: Selection, *, recipe_out: Path | None = None) -> Finding:
    """Compare settings of speed with the defaults.

    Args:
        selection: runs of one framework, model and number of ranks.
        recipe_out: file for those that pay; None: none is written.

    Raises:
        UserError: the runs are of several tasks, or the recipe cannot be written.
    """
    cells = cells_of(selection.runs)
    default, trials = compared(cells)
    chosen = choose(trials)
    notes = ["a setting is taken if the 95 % interval of its time, as a ratio to the default's, is below 1"]
    if recipe_out:
        write_new(recipe_out, recipe_text(default, trials, chosen))
        notes.append(f"{recipe_out} has them: python {default.framework}_impl/train.py --recipe {recipe_out}")
    return Finding(
        name="tune",
        question="Which settings of speed pay on this host?",
        answer=_answer(default, trials, chosen),
        tables=[_table(default, trials)],
        flags=flags_of(selection.rows, cells),
        notes=[*notes, *many_comparisons(len(trials))],
    )


def compared(cells: Sequence[Cell]) -> tuple[Cell, list[Trial]]:
    """Return the cell of the default settings, and the others as trials beside it; those of several settings last.

    Raises:
        UserError: there is not one such cell, or others differ from it in more than their speed.
    """
    defaults = _defaults(cells)
    plain = [cell for cell in cells if not _changed(cell, defaults) and not cell.is_tuned]
    tasks = {tuple(cell.settings.get(name) for name in ("framework", "model", "data set", "np")) for cell in cells}
    if len(plain) != 1 or len(tasks) != 1:
        raise UserError(
            f"settings of speed are compared for one task, with its defaults. Received: runs of {len(tasks)} tasks, "
            f"{len(plain)} with defaults. Name one folder of `python -m launch tune`, such as runs/tune-torch-cnn-np2"
        )
    seconds = plain[0].seconds("training_seconds")
    trials = [
        Trial(cell, _changed(cell, defaults), ratio(cell.seconds("training_seconds"), seconds))
        for cell in cells
        if cell is not plain[0]
    ]
    return plain[0], sorted(trials, key=lambda trial: trial.cell.is_tuned)


def choose(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the value of each setting that is shown to be faster than the default, the fastest of several.

    Those that were tried together stay, whatever further runs show of each alone.
    """
    for trial in trials:
        if trial.cell.is_tuned:
            return dict(trial.settings)
    faster = [trial for trial in trials if trial.verdict == "faster" and len(trial.settings) == 1]
    chosen: dict[str, Any] = {}
    for trial in sorted(faster, key=lambda trial: trial.time.estimate if trial.time else 1.0, reverse=True):
        chosen |= trial.settings
    return {name: chosen[name] for name in SPEED_SETTINGS if name in chosen}


def recipe_text(default: Cell, trials: Sequence[Trial], chosen: Mapping[str, Any]) -> str:
    """Return the chosen settings as TOML, with what each trial gave as comments."""
    first = default.first
    lines = [
        f"# {default.name}. Time of training, as a ratio to the default's; {len(default.timed)} runs of the default:",
        *(f"#   {trial.words}: {_result(trial)}{_taken(trial, chosen)}" for trial in trials),
    ]
    host = getattr(first.record.environment, "host", "an unknown host")
    search = f"{first.folder.parent.name} on {host}"
    tables: dict[str, dict[str, Any]] = {"model": {"model": first.model, TUNED: True, "tuned_by": search}}
    for name, value in chosen.items():
        tables.setdefault(SPEED_SETTINGS[name], {})[name] = value
    about = {
        "title": f"settings of speed for {default.name}",
        "source": f"python -m launch tune, on {host}",
        "ranks": first.np,
    }
    parts = [toml_table(name, values) for name, values in {"about": about, **tables}.items()]
    return "\n".join(["\n".join([*lines, ""]), *parts])


def _defaults(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the default of each setting of speed when these runs were made."""
    values = {name: _DEFAULTS[subject][name] for name, subject in SPEED_SETTINGS.items()}
    # `tune` never tries it: it was the default.
    return values | ({"onednn": "framework"} if any(cell.first.onednn == "framework" for cell in cells) else {})


def _changed(cell: Cell, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of speed that are no defaults."""
    config = cell.first.config or Config()
    values = {name: getattr(getattr(config, subject), name) for name, subject in SPEED_SETTINGS.items()}
    return {name: value for name, value in values.items() if value != defaults[name]}


def _result(trial: Trial) -> str:
    if trial.time is None:
        return "no times"
    interval = shown_interval(trial.time.interval, ".3f")
    pairs = f"n = {trial.time.n[0]} pairs" if trial.time.method == "paired by seed" else f"n = {min(trial.time.n)}"
    shown = f", 95 % interval {interval}" if interval else ""
    return f"{trial.time.estimate:.3f}{shown}, {pairs}: {trial.verdict}"


def _taken(trial: Trial, chosen: Mapping[str, Any]) -> str:
    return ", taken" if not trial.cell.is_tuned and trial.settings.items() <= chosen.items() else ""


def _table(default: Cell, trials: Sequence[Trial]) -> Table:
    headings = ["settings", "n", "time / default", "95 % interval", "p", "verdict"]
    rows = [
        [one.words, len(one.cell.timed), *effect_cells(one.time, ".3f"), one.time.p_value if one.time else None,
         one.verdict]
        for one in trials
    ]  # fmt: skip
    formats = {"n": "d", "time / default": ".3f", "p": ".2g"}
    return Table(f"{default.name}: time of training (n of the default: {len(default.timed)})", headings, rows, formats)


def _answer(default: Cell, trials: Sequence[Trial], chosen: Mapping[str, Any]) -> str:
    if not chosen:
        return f"{framework_label(default.framework)}: no setting is shown to be faster than the default."
    words = ", ".join(f"{name} {str(value).lower()}" for name, value in chosen.items())
    answer = f"{framework_label(default.framework)}: use {words}."
    together = next((trial for trial in trials if trial.cell.is_tuned), None)
    if together is None or together.time is None:
        return f"{answer} They were not tried together."
    return f"{answer} Together: {together.time.estimate:.2f} of the default's time, {together.verdict}."
