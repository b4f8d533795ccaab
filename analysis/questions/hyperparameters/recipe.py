"""A recipe file from the best trial of a search: `torch_impl/train.py --recipe FILE` trains with its settings."""

from pathlib import Path

from analysis.output.recipes import toml_table, write_new
from analysis.questions.hyperparameters.searches import Search
from analysis.runs.labels import framework_label
from common.config import Config
from common.errors import UserError
from common.run_folder.records import World, read_record
from common.run_folder.search_record import TrialRecord
from common.run_folder.sharing import with_measured

_NOT_OF_A_RECIPE = ("record", "energy")  # what a run measures
# Where it runs.
_OF_A_MACHINE = ("device", "threads", "share_gpu", "pinned_memory", "channels_last", "onednn", "memory_limit")
# Defaults, too, for readers.
_ALWAYS = ("dataset", "model", "optimizer", "loss", "epochs", "batch_size", "learning_rate")


def write_recipe(file: Path, search: Search) -> TrialRecord:
    """Write the settings of the best trial as a recipe; return the trial.

    Args:
        file: must not exist.
        search: of which the best trial of all frameworks is taken.

    Raises:
        UserError: the file exists or cannot be written, or no trial is finished.
    """
    best = search.best_trial()
    if best is None or best.run is None:
        raise UserError(f"no trial is finished. Received: {search.folder}. Run the search first")
    record = read_record(search.folder / best.run)
    if not isinstance(record.config, Config):
        raise UserError(f"the settings of the best trial are not recorded. Received: {best.run}. Run the search again")
    ranks = record.world.size if isinstance(record.world, World) else None
    write_new(file, recipe_text(with_measured(record.config, record.groups), search=search, best=best, ranks=ranks))
    return best


def recipe_text(config: Config, *, search: Search, best: TrialRecord, ranks: int | None) -> str:
    """Return the settings of a trial as TOML: all that were searched, and what is no default.

    Args:
        config: of the trial's run.
        search, best: the search and the trial.
        ranks: of the run, for readers; None: not known.
    """
    defaults = Config().as_dict()
    searched = {*best.params, *(["batch_size"] if "global_batch_size" in best.params else [])}
    about = {
        "title": f"the best of {len(search.finished(best.framework))} trials of {framework_label(best.framework)}: "
        f"{search.record.title}",
        "source": f"python -m launch search, {best.run}: {search.metric.label} {best.score:.6g}, "
        f"{search.record.sampler} points, seed {search.record.seed}",
        "searched": sorted(best.params),
        **({} if ranks is None else {"ranks": ranks}),
    }
    parts = [toml_table("about", about)]
    for subject, values in config.as_dict().items():
        chosen = {
            name: value
            for name, value in values.items()
            if name in searched
            or name in _ALWAYS
            or (
                value not in (None, defaults[subject][name])
                and subject not in _NOT_OF_A_RECIPE
                and name not in _OF_A_MACHINE
            )
        }
        if chosen:
            parts.append(toml_table(subject, chosen))
    return "\n".join(parts)
