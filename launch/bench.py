"""`python -m launch bench`: how fast the trainers are, against bare loops, other numbers of ranks and PyTorch DDP."""

from typing import Any


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
