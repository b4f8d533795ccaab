"""Start trainers and measure them.

python -m launch train --framework keras --np 4 -- --epochs 3     check the settings, then horovodrun
python -m launch experiment run smoke                             many runs from one settings file
python -m launch preflight --hosts a:2,b:2                        look over all hosts before a job waits or runs
python -m launch sites                                            where jobs can be started; `show SITE` tells all
python -m launch submit --site slurm -- experiment smoke          a job there; then `status`, `logs`, `cancel`
python -m launch fetch JOB                                        its run folders back, checked by checksums
python -m launch verify RUN                                       does a run reproduce?
python -m launch bench                                            how fast, against bare loops and DDP
python -m launch parity                                           prove that both frameworks train alike
python -m launch stage -o bundle.tar --dataset mnist              pack all that nodes without internet need
python -m launch unstage bundle.tar                               set up from it without any network
"""

import sys
from collections.abc import Sequence

from common.utils.command_line import Parser, run_command
from launch.checks import bench, parity, verify
from launch.experiments import command as experiment
from launch.jobs import commands as job_commands
from launch.jobs import submit
from launch.offline import stage, unstage
from launch.preflight import command as preflight
from launch.starting import train
from launch.transfer import fetch

COMMANDS = (
    train,
    experiment,
    submit,
    job_commands,
    fetch,
    preflight,
    stage,
    unstage,
    verify,
    bench,
    parity,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # What follows "--" belongs to the trainer: argparse would take its flags for ours.
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = Parser(prog="python -m launch", description="Start trainers and measure them.")
    parser.add_version()
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_command(commands)
    options = parser.parse_args(arguments[:cut])
    options.launch_arguments, options.trainer_arguments = arguments[:cut], arguments[cut + 1 :]
    return run_command(lambda: options.run(options), program=f"{parser.prog} {options.command}")


if __name__ == "__main__":
    sys.exit(main())
