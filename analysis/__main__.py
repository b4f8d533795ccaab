"""Read what was measured: tables and plots.

python -m analysis parity FOLDER          what the proofs of `python -m launch parity` showed
python -m analysis parity RUN RUN         whether two runs were the same experiment
"""

import os
import sys
from collections.abc import Sequence

from analysis import parity
from common.command_line import Parser
from common.errors import EXIT_CODE_INTERRUPTED, EXIT_CODE_USER_ERROR, UserError, for_people


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    parser = Parser(prog="python -m analysis", description="Tables and plots of what was measured.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parity.add_command(commands)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UserError, OSError, MemoryError) as caught:
        error = for_people(caught)
        print(f"{parser.prog} {options.command}: error: {error}", file=sys.stderr)
        return EXIT_CODE_USER_ERROR
    except KeyboardInterrupt:
        return EXIT_CODE_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
