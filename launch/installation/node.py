"""What is known of a node with NVIDIA GPUs: read from this machine, or from a site file. Standard library only."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.utils.paths import ROOT
from common.utils.whole_files import read_toml
from launch.installation.cuda import Node, Toolkit, numbers

DRIVER_FILE = Path("/proc/driver/nvidia/version")
SITES_FILE = ROOT / "common" / "sites" / "sites.toml"
PATIENCE_SECONDS = 20  # a driver that hangs does not answer at all
VARIABLES = ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH")
# Where a toolkit has its libraries: NVIDIA's own installer, pip, Debian.
LIBRARIES = ("lib64", "lib", "targets/*/lib", "lib/*-linux-gnu")
HEADERS = ("include", "targets/*/include")  # conda has the second alone
# What is read of a site file: its type, the pattern of each text, an example. Keys of no other name are tables.
KEYS: dict[str, tuple[type, str, str]] = {
    "architecture": (str, r"\w+", '"x86_64"'),
    "nodes": (list, ".+", '["aws-g5-12xlarge"]'),
    "gpu": (str, ".+", '"a10g"'),
    "compute_capability": (str, r"[0-9]{1,2}\.[0-9]", '"8.6"'),
    "driver": (str, r"[0-9]+(\.[0-9]+)*", '"580.126.09"'),
    "toolkits": (list, r"[0-9]+\.[0-9]+", '["12.9", "13.0"]'),
}


def gpu_present() -> bool:
    """Return whether this machine has an NVIDIA GPU with a working driver."""
    return DRIVER_FILE.exists() or bool(ask_nvidia("--list-gpus"))


def ask_nvidia(*args: str) -> str:
    """Return what nvidia-smi answers; nothing if there is none, it finds no GPU, or it hangs."""
    return _ask("nvidia-smi", *args)


def _ask(*words: str) -> str:
    pipe, patience = subprocess.PIPE, PATIENCE_SECONDS
    try:
        done = subprocess.run(words, stdout=pipe, stderr=pipe, errors="replace", timeout=patience, check=False)
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
    driver, notes = rows[0][0] if rows else "", []
    if not rows and DRIVER_FILE.exists():
        text = DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
        driver = "".join(re.findall(r"Kernel Module\D*(\d+(?:\.\d+)+)", text)[:1])
        notes.append(f"nvidia-smi does not answer; the driver's version is from {DRIVER_FILE}")
    if (rows or notes) and re.fullmatch(r"\d+(\.\d+)+", driver) is None:
        raise UserError(
            f"the NVIDIA driver does not tell its version. Received: {driver or 'nothing'}. See what `nvidia-smi` "
            "prints and repair the driver, or leave the GPU unused: make setup GPU=0"
        )
    capabilities = {row[1] for row in rows if len(row) > 1 and re.fullmatch(r"\d+\.\d+", row[1])}
    toolkits, passed_over = find_toolkits(_candidates())
    return Node(
        architecture=platform.machine(),
        driver=driver,
        capabilities=tuple(sorted(capabilities, key=numbers)),
        toolkits=toolkits,
        notes=(*notes, *passed_over),
    )


def _candidates() -> list[Path]:
    named = [Path(os.environ[name]) for name in VARIABLES if os.environ.get(name)]
    program = shutil.which("nvcc")
    on_path = [Path(program).resolve().parents[1]] if program else []
    usual = sorted(Path("/usr/local").glob("cuda-*"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    return [*named, *on_path, Path("/usr/local/cuda"), *reversed(usual)]


def find_toolkits(homes: Iterable[Path]) -> tuple[tuple[Toolkit, ...], tuple[str, ...]]:
    """Return the whole CUDA toolkits among folders, and what was passed over, in words."""
    toolkits, notes = [], []
    for home in dict.fromkeys(home.resolve() for home in homes):
        nvcc = home / "bin" / "nvcc"
        try:
            if nvcc.exists():
                toolkits.append(Toolkit(home=home, version=_version(home)))
        except OSError as error:  # no permission, say
            notes.append(f"passed over {nvcc}: {error.strerror or error}")
    return tuple(toolkits), tuple(notes)


def _version(home: Path) -> str:
    """Return the release of the whole toolkit in a folder, such as "12.9".

    Raises:
        OSError: it is not whole, or may not be read.
    """
    version = "".join(re.findall(r"release (\d+\.\d+)", _ask(f"{home}/bin/nvcc", "--version"))[:1])
    if not version:
        raise OSError("it does not tell its version")
    if not any(list(home.glob(f"{folder}/cuda_runtime.h")) for folder in HEADERS):
        raise OSError(f"{version}, a script or half a toolkit, as there is no include/cuda_runtime.h")
    if not any(list(home.glob(f"{folder}/libcudart.so*")) for folder in LIBRARIES):
        raise OSError(f"{version}, half a toolkit, as there is no libcudart.so")
    return version


def described_node(reference: str) -> Node:
    """Return what a site file says of its nodes: `[launch.software]` and the GPUs of its kinds of node.

    Args:
        reference: a shipped site, or the path of a file; with `:KIND`, one of its kinds of node.

    Raises:
        UserError: there is no such site, a value in its file is none, or its nodes have no NVIDIA GPU that is known.
    """
    name, _, kind = (reference, "", "") if reference.endswith(".toml") else reference.partition(":")
    shipped = ROOT / "launch" / "sites"
    path = Path(name) if name.endswith(".toml") else shipped / f"{name}.toml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in shipped.glob("*.toml")))
        raise UserError(f"--node names no site. Received: {reference}. Use one of {names}, or a file of your own")
    own = read_toml(path, what="site")
    launch = _value(own, "launch", path)
    software, kinds = _value(launch, "software", path), _value(launch, "nodes", path)
    nodes = [node for node in kinds if kind in ("", node, node.removeprefix(f"{name}-"))]
    if kinds and not nodes:
        raise UserError(f"{name} has no such kind of node. Received: {reference}. Use {', '.join(kinds)}")
    known = read_toml(SITES_FILE, what="table of sites")
    capabilities = {_capability(node, own, known, path) for node in nodes} - {""}
    if not capabilities:
        raise UserError(f"no NVIDIA GPU is known of these nodes. Received: {reference}. Name nodes with GPUs: aws-g5")
    versions = sorted(_value(software, "toolkits", path), key=numbers, reverse=True)
    return Node(
        architecture=_value(launch, "architecture", path) or "x86_64",
        driver=_value(software, "driver", path),
        capabilities=tuple(sorted(capabilities, key=numbers)),
        toolkits=tuple(Toolkit(home=Path(f"cuda-{version}"), version=version) for version in versions),
    )


def _capability(node: str, own: dict[str, Any], known: dict[str, Any], path: Path) -> str:
    """Return the compute capability of a node's GPUs, by a site file's entries over the project's; empty: none."""

    def entry(part: str, name: str) -> dict[str, Any]:
        return {**known[part].get(name, {}), **_value(_value(own, part, path), name, path)}

    model = _value(entry("sites", node), "gpu", path)
    gpu = entry("gpus", model) if model else {}
    if model and not gpu:
        raise UserError(f"the site's GPU is not known. Received: gpu = {model!r} in {path}. Add [gpus.{model}] to it")
    return str(_value(gpu, "compute_capability", path))


def _value(table: dict[str, Any], key: str, path: Path) -> Any:
    """Return a value of a site file; an empty one if it is absent. pydantic, which checks all, is not there yet.

    Raises:
        UserError: it has another type or form.
    """
    kind, pattern, example = KEYS.get(key, (dict, "", "a table"))
    value = table.get(key, kind())
    texts = [value] if kind is str else value if kind is list else []
    if key in table and not (
        isinstance(value, kind) and all(isinstance(text, str) and re.fullmatch(pattern, text) for text in texts)
    ):
        raise UserError(f"the site has no valid `{key}`. Received: {value!r} in {path}. Write {example}")
    return value
