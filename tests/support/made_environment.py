"""An environment that has the packages of this one, a wheel, and nothing else of this project."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def environment_with(wheel, place):
    """Make the environment in an empty folder; return its Python."""
    venv.create(place)
    packages = sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)})
    # The path alone: what is in its own .pth files, such as this project, does not come along.
    Path(packages, "others.pth").write_text(sysconfig.get_path("purelib"))
    python = str(place / "bin" / "python")
    install = ["--python", python, "install", "--no-deps", "--no-index", "--ignore-installed", "--quiet", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return python
