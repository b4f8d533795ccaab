"""`python -m launch tune`: find the settings of speed that pay on this host, and write them as a recipe.

    python -m launch tune --framework torch --model cnn --np 2             runs, table, and runs/tune-.../recipe.toml
    python torch_impl/train.py --recipe runs/tune-torch-cnn-np2/recipe.toml

Each setting is tried alone against the defaults, one run of each in turns; then those that are shown to be faster are
tried together. `analysis/questions/tune.py` has the rules. Run the same command again after an interruption.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.config import GRADIENT_GROUPS, read_recipe
from common.errors import EXIT_CODE_INTERRUPTED, UserError, expanded
from common.names import framework_here
from common.utils.command_line import whole_number, word
from launch.experiments.command import config_in_folder, estimator_of_cells, make_in_folder
from launch.experiments.survey import HostResources, survey, this_host
from launch.starting.analysis import run_analysis
from launch.starting.lanes import WHOLE_HOST
from launch.starting.processes import PROGRAMS, require_frameworks
from launch.starting.train import check_settings

# Of the runs of all chosen settings together: other than those of each alone, so that the runs of the default pair with
# both.
SEED_TOGETHER = 1001


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "tune",
        help="find the settings of speed that pay on this host, as a recipe",
        description="Try the settings that change the speed only, each in turns with the defaults, then those that pay "
        "together. Show what each gave and write a recipe, for --recipe of the trainers. The same command goes on "
        "after an interruption.",
    )
    parser.add_argument("--framework", type=framework_here, choices=PROGRAMS, required=True)
    parser.add_argument("--model", type=word, required=True, help="as for the trainers")
    parser.add_argument("--np", type=whole_number, default=1, help="number of ranks (default: %(default)s)")
    parser.add_argument("--dataset", type=word, help="default: the trainers'")
    parser.add_argument("--steps", type=whole_number, default=100, help="updates of a run (default: %(default)s)")
    parser.add_argument(
        "--repeats",
        type=whole_number,
        default=6,
        help="runs of each; below 6 they do not pair (default: %(default)s)",
    )
    parser.add_argument("--runs-folder", type=word, default="runs", help="where its folder is (default: %(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the missing runs and write the recipe; return 0, or 1 where a run has failed."""
    host = this_host()
    if options.np > max(host.cores, host.gpus):
        raise UserError(
            f"timings are invalid where ranks share a core. Received: --np {options.np} on {host.cores:g} cores. "
            f"Give --np {host.cores:g} or less"
        )
    folder = expanded(options.runs_folder) / (
        f"tune-{options.framework}-{options.model.replace(':', '-')}-np{options.np}"
    )
    recipe = folder / "recipe.toml"
    levers = levers_of(options.framework, np=options.np, host=host)
    code = _make([{"name": "default"}, *levers], folder=folder, options=options)
    if code == EXIT_CODE_INTERRUPTED:
        return code
    if wrong := _judge(folder, recipe):
        return wrong
    chosen = {name: value for table in read_recipe(recipe).values() for name, value in table.items()}
    del chosen["tuned_by"]  # these runs are part of the search
    seed = {"seed": SEED_TOGETHER}
    cells = [{"name": "beside", **seed}, {"name": "together", **chosen, **seed}]
    code = max(code, _make(cells, folder=folder, options=options))
    return code if code == EXIT_CODE_INTERRUPTED else _judge(folder, recipe) or code


def levers_of(framework: str, *, np: int, host: HostResources) -> list[dict[str, Any]]:
    """Return the settings of speed that can be tried, as cells of an experiment."""
    threads = int(host.cores) // np  # of a rank by default: more do not count
    fewer = [] if host.gpus else [2**power for power in range(threads.bit_length()) if 2**power < threads]
    return [
        {"name": "compile", "compile": True},
        *([{"name": "threads", "threads": fewer}] if fewer else []),
        # TensorFlow has no kernels for channels first on CPUs.
        *([{"name": "layout", "channels_last": False}] if framework == "torch" or host.gpus else []),
        *([{"name": "pinned", "pinned_memory": True}] if host.gpus and framework == "torch" else []),
        *([] if host.gpus else [{"name": "onednn", "onednn": "off"}]),
        *([{"name": "groups", "gradient_groups": [*GRADIENT_GROUPS][1:]}] if np > 1 else []),
    ]


def _make(cells: Sequence[Mapping[str, Any]], *, folder: Path, options: argparse.Namespace) -> int:
    """Make the missing runs of some cells; return the exit code."""
    task = {"framework": options.framework, "model": options.model, "np": options.np, "epochs": 1}
    task |= {"max_steps": options.steps, **({"dataset": options.dataset} if options.dataset else {})}
    task |= {"launcher": "python"} if options.np == 1 else {}
    estimator = estimator_of_cells(
        [{**task, **cell} for cell in cells], folder=folder, repeats=options.repeats, np=options.np
    )
    plan = estimator.plan
    # Reports what prevents the runs before anything is created.
    require_frameworks([options.framework])
    check_settings(config_in_folder(plan), framework=options.framework, size=options.np)
    survey(plan)
    return make_in_folder(estimator, [WHOLE_HOST], options=options)


def _judge(folder: Path, recipe: Path) -> int:
    """Show what the runs say, and write the recipe anew; return the exit code."""
    recipe.unlink(missing_ok=True)
    return run_analysis("tune", folder, "--recipe-out", recipe)
