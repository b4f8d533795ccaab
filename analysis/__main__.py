"""Read what was measured: tables, plots and a report.

python -m analysis frameworks RUNS...                 tf.keras against PyTorch: time, throughput, accuracy
python -m analysis clouds                             CTE-POWER or AWS, from what is known without a run
python -m analysis clouds RUNS... --base cte-power    sites side by side: time, cost, energy
python -m analysis scaling RUNS...                    speedup and efficiency over ranks, models of them, projections
python -m analysis strategies RUNS...                 ways to share the work: time, accuracy, bytes, staleness, claims
python -m analysis energy RUNS...                     energy by device and phase, power over time, EDP
python -m analysis hyperparameters RUNS...            what a search found; accuracy and time by batch and resolution
python -m analysis tune FOLDER                        which settings of speed pay, from runs of `launch tune`
python -m analysis compare RUN RUN                    two runs on one screen
python -m analysis report RUNS... -o report.html      all of it in one self-contained page
python -m analysis times RUNS...                      times of epochs; mean epoch, test and total
python -m analysis layers RUN RUN                     where a step spends its time, layer by layer
python -m analysis faults RUNS...                     elastic runs: what happened to their ranks, and what it cost
python -m analysis check RUNS...                      why a run or a comparison is not valid
python -m analysis aa-test RUNS...                how often the comparison is wrong
python -m analysis parity FOLDER                      what the proofs of `python -m launch parity` showed
python -m analysis parity RUN RUN                     whether two runs were the same experiment
python -m analysis bench FILE                         the speed that `python -m launch bench` measured
python -m analysis verify RERUN                       whether a rerun of `python -m launch verify` reproduces its run
python -m analysis experiment FOLDER                  medians of each cell of an experiment
python -m analysis import-thesis THESIS --folder RUNS  the raw files of the thesis as run folders
python -m analysis thesis RUNS...                     its tables and figures, with the published values
python -m analysis projection [RUNS...]               how far the projected time of a training step can be trusted
python -m analysis ring --np 4                        the ring all-reduce, pass by pass
python -m analysis export RUNS... --to mlflow         settings, figures and files for MLflow or TensorBoard
python -m analysis table RUNS... --output runs.csv    one tidy table of runs, epochs or parts of steps
python -m analysis results                            the tables of results in this repository's pages
"""

from common.utils.garbage import pause_garbage_collection, resume_garbage_collection

if __name__ == "__main__":
    pause_garbage_collection()

import shlex
import sys
from collections.abc import Sequence
from importlib import import_module

from analysis.output.options import check_show_options
from common.utils.command_line import Parser, run_command

# In the order of the help; the module of each command.
COMMANDS = {
    "frameworks": "analysis.questions.frameworks",
    "clouds": "analysis.clouds.command",
    "scaling": "analysis.questions.scaling.command",
    "strategies": "analysis.questions.strategies.command",
    "energy": "analysis.questions.energy.command",
    "hyperparameters": "analysis.questions.hyperparameters.command",
    "tune": "analysis.questions.tune",
    "times": "analysis.questions.times",
    "layers": "analysis.questions.layers",
    "faults": "analysis.questions.faults",
    "compare": "analysis.questions.compare",
    "report": "analysis.report.command",
    "check": "analysis.questions.check",
    "aa-test": "analysis.questions.aa_test",
    "parity": "analysis.questions.parity.command",
    "bench": "analysis.questions.bench",
    "verify": "analysis.questions.verify",
    "experiment": "analysis.questions.experiment",
    "import-thesis": "analysis.thesis.import_command",
    "thesis": "analysis.thesis.command",
    "projection": "analysis.questions.projection.command",
    "ring": "analysis.questions.ring.command",
    "results": "analysis.results.command",
    "table": "analysis.export.table_command",
    "export": "analysis.export.export_command",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    parser = Parser(prog="python -m analysis", description="Tables and plots of what was measured.")
    parser.add_version()
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    arguments = sys.argv[1:] if arguments is None else arguments
    # All commands take longer to import than some take to run, and the version needs none.
    asked = set(arguments[:1])
    if asked != {"--version"}:
        for name in asked & {*COMMANDS} or COMMANDS:
            import_module(COMMANDS[name]).add_command(commands)
    resume_garbage_collection()  # all is imported
    options = parser.parse_args(arguments)
    options.command_line = shlex.join(["python", "-m", "analysis", *arguments])

    def run() -> int | None:
        check_show_options(options)
        code: int | None = options.run(options)
        return code

    return run_command(run, program=f"{parser.prog} {options.command}")


if __name__ == "__main__":
    sys.exit(main())
