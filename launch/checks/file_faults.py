"""The library that lets file operations of a process fail, or end it: `file_faults.c`, compiled where it is used."""

import errno
import shutil
import subprocess
from pathlib import Path

from common.checks.chaos_record import Kind
from common.errors import UserError

SOURCE = Path(__file__).with_name("file_faults.c")
ACTIONS: dict[Kind, int] = {
    "end": -1,
    "EIO": errno.EIO,
    "ENOSPC": errno.ENOSPC,
    "EMFILE": errno.EMFILE,
    "clock +1 day": -2,
    "clock -1 day": -3,
}


def build_library(library: Path) -> None:
    """Compile `file_faults.c`.

    Raises:
        UserError: there is no compiler, or it fails.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise UserError("file faults need a C compiler. Received: no cc in PATH. Install one, such as package gcc")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise UserError(f"{SOURCE.name} cannot be compiled. Received: {built.stderr.strip().splitlines()[-1]}")
