"""Read what was measured: tables and plots.

python -m analysis parity FOLDER          what the proofs of `python -m launch parity` showed
python -m analysis parity RUN RUN         whether two runs were the same experiment
"""

import sys
from collections.abc import Sequence

from analysis import a_against_a, check, frameworks, parity
from common.command_line import Parser, carry_out


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    parser = Parser(prog="python -m analysis", description="Tables and plots of what was measured.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (frameworks, check, a_against_a, parity):
        module.add_command(commands)
    options = parser.parse_args(arguments)
    return carry_out(lambda: options.run(options), program=f"{parser.prog} {options.command}")


if __name__ == "__main__":
    sys.exit(main())
