"""What is known of a node with NVIDIA GPUs: read from this machine, or from a site file. Standard library only."""

import os
import platform
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.utils.paths import ROOT
from launch.installation.cuda import Node, Toolkit, parse_driver

DRIVER_FILE = Path("/proc/driver/nvidia/version")
PATIENCE_SECONDS = 20  # a driver that hangs does not answer at all
VARIABLES = ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH")
# Where a toolkit has its libraries: NVIDIA's own installer, pip, Debian.
LIBRARIES = ("lib64", "lib", "targets/*/lib", "lib/*-linux-gnu")


def gpu_present() -> bool:
    """Return whether this machine has an NVIDIA GPU with a working driver."""
    return DRIVER_FILE.exists() or bool(ask_nvidia("--list-gpus"))


def ask_nvidia(*args: str) -> str:
    """Return what nvidia-smi answers; nothing if there is none, it finds no GPU, or it hangs."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *args], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def this_node() -> Node:
    """Return what this machine tells. Where nvidia-smi does not answer, the driver's own file names its version.

    Raises:
        UserError: the driver answers, but with no version.
    """
    answer = ask_nvidia("--query-gpu=driver_version,compute_cap", "--format=csv,noheader")
    rows = [[part.strip() for part in line.split(",")] for line in answer.splitlines() if line.strip()]
    driver, notes = "", []
    if rows:
        driver = parse_driver(rows[0][0])
    elif DRIVER_FILE.exists():
        found = re.search(r"Kernel Module\D*(\d+(\.\d+)+)", DRIVER_FILE.read_text(encoding="utf-8", errors="replace"))
        driver = parse_driver(found[1] if found else "")
        notes.append(f"nvidia-smi does not answer; the driver's version is from {DRIVER_FILE}")
    capabilities = {row[1] for row in rows if len(row) > 1 and re.fullmatch(r"\d+\.\d+", row[1])}
    toolkits, passed_over = find_toolkits(_candidates())
    return Node(
        architecture=platform.machine(),
        driver=driver,
        capabilities=tuple(sorted(capabilities, key=lambda one: tuple(map(int, one.split("."))))),
        toolkits=toolkits,
        notes=(*notes, *passed_over),
    )


def _candidates() -> list[Path]:
    named = [Path(os.environ[name]) for name in VARIABLES if os.environ.get(name)]
    program = shutil.which("nvcc")
    found = [Path(program).resolve().parents[1]] if program else []
    usual = sorted(Path("/usr/local").glob("cuda-*"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    return [*named, *found, Path("/usr/local/cuda"), *reversed(usual)]


def find_toolkits(homes: Iterable[Path]) -> tuple[tuple[Toolkit, ...], tuple[str, ...]]:
    """Return the whole CUDA toolkits among folders, and what was passed over, in words."""
    toolkits: dict[Path, Toolkit] = {}
    notes: dict[Path, str] = {}
    for home in homes:
        place = home.resolve()
        nvcc = place / "bin" / "nvcc"
        if place in toolkits or place in notes or not nvcc.exists():
            continue
        version = nvcc_version(nvcc)
        if not version:
            notes[place] = f"passed over {nvcc}: it does not tell its version"
        elif not (place / "include" / "cuda_runtime.h").exists():
            notes[place] = (
                f"passed over {nvcc} ({version}): a script or half a toolkit, as there is no include/cuda_runtime.h"
            )
        elif not any(list(place.glob(f"{folder}/libcudart.so*")) for folder in LIBRARIES):
            notes[place] = f"passed over {nvcc} ({version}): half a toolkit, as there is no libcudart.so"
        else:
            toolkits[place] = Toolkit(home=place, version=version)
    return tuple(toolkits.values()), tuple(notes.values())


def nvcc_version(nvcc: Path) -> str:
    """Return the release that an nvcc prints, such as "12.9"; empty if it does not."""
    try:
        done = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"release (\d+\.\d+)", done.stdout)
    return found[1] if found else ""


def described_node(reference: str) -> Node:
    """Return what a site file says of its nodes: `[launch.software]` and the GPUs of its kinds of node.

    Args:
        reference: a shipped site, or the path of a file; with `:KIND`, one of its kinds of node.

    Raises:
        UserError: there is no such site, or its nodes have no NVIDIA GPU that is known.
    """
    name, _, kind = (reference, "", "") if reference.endswith(".toml") else reference.partition(":")
    shipped = ROOT / "launch" / "sites"
    path = Path(name) if name.endswith(".toml") else shipped / f"{name}.toml"
    known = _read(ROOT / "common" / "sites" / "sites.toml")
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in shipped.glob("*.toml")))
        raise UserError(f"--node names no site. Received: {reference}. Use one of {names}, or a file of your own")
    own = _read(path)
    launch = own.get("launch", {})
    gpus, sites = (known[part] | own.get(part, {}) for part in ("gpus", "sites"))
    nodes = [node for node in launch.get("nodes", []) if kind in ("", node, node.removeprefix(f"{name}-"))]
    models = {sites[node]["gpu"] for node in nodes if "gpu" in sites.get(node, {})}
    capabilities = {gpus[model]["compute_capability"] for model in models if "compute_capability" in gpus[model]}
    if not capabilities:
        raise UserError(f"no NVIDIA GPU is known of these nodes. Received: {reference}. Name nodes with GPUs: aws-g5")
    software: dict[str, Any] = launch.get("software", {})
    return Node(
        architecture=launch.get("architecture", "x86_64"),
        driver=software.get("driver", ""),
        capabilities=tuple(sorted(capabilities, key=float)),
        toolkits=tuple(
            Toolkit(home=Path(f"cuda-{version}"), version=version)  # its place is not known
            for version in sorted(software.get("toolkits", ()), key=float, reverse=True)
        ),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the site cannot be read. Received: {path} ({error}). Correct the file") from None
