"""Lets a process that no launcher started initialize PyPI's Open MPI. Set-up adds this file to Horovod's wheel.

Open MPI looks for its files in the folder where it was built, for PyPI's wheel one of a build machine, and ends the
process in `MPI_Init` if they are missing. Launchers pass the right folder on; a process alone needs it in OPAL_PREFIX.
Imports the standard library only.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LAUNCHER_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "HOROVOD_RANK")  # as in common/distributed


@contextmanager
def open_mpi_prefix() -> Iterator[None]:
    """Set OPAL_PREFIX to this environment's folder, for the time of `MPI_Init` only.

    Programs that are started later do not inherit it: a cluster's own `mpirun` would look for its files here. Nothing
    is set if the variable is set already, under a launcher, or if the MPI library is not this environment's.
    """
    needed = not os.environ.keys() & {"OPAL_PREFIX", *LAUNCHER_VARIABLES} and _mpi_is_in(Path(sys.prefix))
    if needed:
        os.environ["OPAL_PREFIX"] = sys.prefix
    try:
        yield
    finally:
        if needed:
            del os.environ["OPAL_PREFIX"]


def _mpi_is_in(environment: Path) -> bool:
    """Return whether the MPI library that this process has loaded is in the environment's folder `lib`."""
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()  # a file's path is the sixth field
    loaded = {Path(line.split(maxsplit=5)[5]) for line in lines if "/libmpi.so" in line}
    return bool(loaded) and all(library.parent == (environment / "lib").resolve() for library in loaded)
