"""What Horovod was built with, read from its compiled files: asking Horovod itself means to import a framework.

Set-up adds this file to Horovod's wheel, where horovodrun uses it at every start, and the answer with it: to search a
library of 54 MB takes longer than the rest of a start. Standard library alone.
"""

import json
import mmap
from pathlib import Path

# C++ needs the names of classes at run time, so a class that was compiled leaves its name in the file.
MARKS = {"mpi": b"13MPIControllerE", "gloo": b"14GlooControllerE", "nccl": b"13NCCLAllreduceE"}
# The folder of a framework in the package -> its compiled file.
LIBRARIES = {"torch": "mpi_lib_v2*.so", "tensorflow": "mpi_lib*.so"}
KEPT = "build_features.json"  # in the package: framework -> features


def build_features(package: Path, framework: str) -> list[str] | None:
    """Return which of mpi, gloo and nccl Horovod was built with for a framework; None: it was not built for it.

    Args:
        package: the folder of the installed package `horovod`.
        framework: torch or tensorflow.
    """
    kept = package / KEPT
    if kept.exists():
        answer: list[str] | None = json.loads(kept.read_text()).get(framework)
        return answer
    library = next(package.glob(f"{framework}/{LIBRARIES[framework]}"), None) if framework in LIBRARIES else None
    if library is None:
        return None
    with library.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [name for name, mark in MARKS.items() if content.find(mark) >= 0]


def keep_build_features(package: Path) -> None:
    """Write the answers into the package, for `build_features`."""
    answers = {framework: build_features(package, framework) for framework in LIBRARIES}
    (package / KEPT).write_text(json.dumps(answers) + "\n")
