"""Words of a shell script, quoted."""

import shlex
from collections.abc import Sequence


class Shell(str):
    """A word that the shell of a script fills in, such as "$SLURM_NTASKS"; it is not quoted."""


def line(words: Sequence[str]) -> str:
    """Return words as a line of a script, each quoted where a shell would read it otherwise."""
    return " ".join(word if isinstance(word, Shell) else shlex.quote(word) for word in words)
