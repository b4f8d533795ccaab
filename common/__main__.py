"""Commands for data and schemas that need no framework.

python -m common datasets list | fetch NAME... | verify [NAME...]
python -m common images look PATH                                     what is in a folder, and what looks wrong
python -m common images prepare FOLDER --image-size HEIGHTxWIDTH --output FILE      one file for training
python -m common images draw FOLDER                                   example images
python -m common twins FILE                                           compare a PyTorch model with a Keras model
python -m common schema                                               of run folders and parity.json, as JSON Schema
"""

import json
import sys
from collections.abc import Sequence

from common.checks.parity_record import PARITY_FILE, PROOFS
from common.data import command as datasets_command
from common.data.images import command as images_command
from common.run_folder.records import run_folder_schema
from common.twins import command as twins_command
from common.utils.command_line import Parser, end_cleanly_on_sigterm, run_command


def all_schemas() -> dict[str, object]:
    """Return file name -> JSON Schema."""
    return {**run_folder_schema(), PARITY_FILE: PROOFS.schema()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, or 2 after a user error."""
    parser = Parser(prog="python -m common", description="Commands that need no framework.")
    parser.add_version()
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    datasets_command.add_parser(commands)
    images_command.add_parser(commands)
    twins_command.add_parser(commands)
    schema = commands.add_parser("schema", help="print the JSON Schema of run folders and of parity.json")
    schema.set_defaults(run=lambda options: print(json.dumps(all_schemas(), indent=1)))
    options = parser.parse_args(arguments)
    end_cleanly_on_sigterm()
    return run_command(lambda: options.run(options), program=parser.prog)


if __name__ == "__main__":
    sys.exit(main())
