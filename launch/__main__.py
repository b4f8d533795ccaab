"""Start trainers, check machines, submit jobs, run experiments.

python -m launch train --framework keras --np 2 -- --epochs 3     check the settings, then horovodrun
python -m launch compare --model cnn --np 2                        which framework is faster here?
python -m launch experiment run smoke                             many runs from one settings file
python -m launch search FILE --at-once 2                          good settings by many trials, in both frameworks
python -m launch tune --framework torch --model cnn --np 2         the settings of speed that pay here, as a recipe
python -m launch preflight --hosts a:2,b:2                        check all hosts before a job waits or runs
python -m launch sites                                            where jobs can run; `sites SITE` prints everything
python -m launch submit --site slurm -- experiment smoke          a job there; then `status`, `logs`, `cancel`
python -m launch fetch JOB                                        bring its run folders here, verified by checksums
python -m launch export RUN --to onnx --output model.onnx          its model for PyTorch, Keras or ONNX
python -m launch verify RUN                                       does a run reproduce?
python -m launch bench                                            how fast, against bare loops and DDP
python -m launch parity                                           prove that both frameworks train alike
python -m launch chaos --faults 20                                end and stop ranks at random: nothing may be lost
python -m launch setup --dry-run --node aws-g5                    what set-up would do, on the nodes of a site
python -m launch stage -o bundle.tar --dataset mnist              pack what nodes without internet need
python -m launch unstage bundle.tar                               set up from it without any network
"""

from common.utils.garbage import pause_garbage_collection, resume_garbage_collection

if __name__ == "__main__":
    pause_garbage_collection()

import argparse
import shlex
import sys
from collections.abc import Sequence

from common.utils.command_line import Parser, end_cleanly_on_sigterm, run_command
from launch.bench import command as bench
from launch.checks import chaos, parity, verify
from launch.experiments import command as experiment
from launch.experiments import compare, tune
from launch.installation import command as setup
from launch.jobs import commands as job_commands
from launch.jobs import submit
from launch.offline import stage, unstage
from launch.preflight import command as preflight
from launch.search import command as search
from launch.sites.options import place_of_sbatch_option
from launch.starting import export, train
from launch.starting.processes import PROGRAMS
from launch.transfer import fetch

COMMANDS = (
    train,
    compare,
    experiment,
    search,
    tune,
    submit,
    job_commands,
    fetch,
    export,
    preflight,
    setup,
    stage,
    unstage,
    verify,
    bench,
    parity,
    chaos,
)
TAKING_SETTINGS = ("train", "submit", "compare")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # What follows "--" belongs to the trainer: argparse would take its flags for ours.
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = Parser(prog="python -m launch", description="Start trainers, check machines, submit jobs.")
    parser.add_version()
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_command(commands)
    options, unknown = parser.parse_known_args(arguments[:cut])
    if unknown:
        commands.choices[options.command].error(unknown_arguments(unknown, options=options))
    options.launch_arguments, options.trainer_arguments = arguments[:cut], arguments[cut + 1 :]
    if options.trainer_arguments and options.command not in TAKING_SETTINGS:
        commands.choices[options.command].error(
            f"nothing may follow --, as settings of the trainer do after {', '.join(TAKING_SETTINGS)}. "
            f"Received: {shlex.join(options.trainer_arguments)}"
        )
    end_cleanly_on_sigterm()
    return run_command(lambda: options.run(options), program=f"{parser.prog} {options.command}")


def unknown_arguments(words: Sequence[str], *, options: argparse.Namespace) -> str:
    """Return what is wrong with arguments that a command does not know: mostly a trainer's settings without "--"."""
    line = f"unrecognized arguments: {shlex.join(words)}"
    if options.command not in ("train", "submit"):
        return line
    if options.command == "submit" and "--elastic" in words:
        return submit.NOT_ELASTIC
    if options.command == "submit" and (places := list(filter(None, map(place_of_sbatch_option, words)))):
        return f"{line}. {'. '.join(places)}"
    named = [word for word in words if word in PROGRAMS.values()]
    program = (named or [PROGRAMS[getattr(options, "framework", "torch")]])[0]
    settings = shlex.join([*named, *(word for word in words if word not in named)])
    return f"{line}. Settings of the trainer follow after --, as in `-- {settings}`: see `python {program} --help`"


if __name__ == "__main__":
    resume_garbage_collection()
    sys.exit(main())
