"""Which CUDA each framework gets on a node with NVIDIA GPUs, and in which environment. Nothing here looks at a machine.

PyTorch 2.13.0 is published for CUDA 13 (PyPI) and for CUDA 12.6 (its own index), TensorFlow 2.21.0 for CUDA 12 alone.
Libraries of two majors overwrite each other in one environment, as both are unpacked into `nvidia/`, and pip does not
see it. Horovod's kernels are compiled by an nvcc of the framework's major: PyPI has one of CUDA 13, none of CUDA 12.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.errors import UserError
from launch.installation.environment import NAMES, ONLY, Environment

# The oldest branch of the driver that runs a CUDA major (NVIDIA, CUDA Compatibility, minor version compatibility).
DRIVERS = {12: 525, 13: 580}
# What Horovod is compiled for where the GPUs are not known, such as on a login node.
CAPABILITIES = {
    12: ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0"),
    13: ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"),
}


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """CUDA's compiler with its headers and libraries; `version` such as "12.9"."""

    home: Path
    version: str


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node with NVIDIA GPUs, as far as it is known."""

    architecture: str = "x86_64"  # as `uname -m` prints it
    driver: str = ""  # its version, such as "580.126.09"; empty: unknown
    capabilities: tuple[str, ...] = ()  # compute capabilities of its GPUs, such as ("8.0", "9.0"); empty: unknown
    toolkits: tuple[Toolkit, ...] = ()  # whole CUDA toolkits that are installed there, the preferred first
    notes: tuple[str, ...] = ()  # what was found and passed over, in words

    def toolkit(self, cuda: int) -> Toolkit | None:
        """Return the toolkit to compile with for a CUDA major; None: that of pip, of the release of PyTorch's CUDA 13.

        Another release of the same major will do for CUDA 12, as its drivers run code of all of them, if it knows the
        GPUs: those of 10.0 and later are known since 12.8.
        """
        least = (12, 8) if any(numbers(capability) >= (10, 0) for capability in self.capabilities) else (12, 0)
        fitting = (toolkit for toolkit in self.toolkits if least <= numbers(toolkit.version) < (13, 0))
        return next(fitting, None) if cuda == 12 else None


@dataclass(frozen=True, kw_only=True)
class Build:
    """A framework's published build for one major version of CUDA.

    It has code for compute capabilities from `oldest` to `newest`; without, also code that drivers translate for later
    ones. From the build's own list (`torch._C._cuda_getArchFlags`, `tf.sysconfig.get_build_info`).
    """

    oldest: str
    newest: str = "999.0"
    architectures: tuple[str, ...] = ("x86_64",)  # processors that there are wheels for


# By framework and CUDA's major version.
BUILDS = {
    "torch": {12: Build(oldest="5.0", newest="9.0"), 13: Build(oldest="7.5", architectures=("x86_64", "aarch64"))},
    "keras": {12: Build(oldest="6.0")},
}


def choose(node: Node, wanted: Environment) -> list[Environment]:
    """Return the environments for a node: one on CUDA 12 if that suits all, else one for each framework.

    One environment has the advantage that both frameworks compute with the same libraries.

    Raises:
        UserError: a framework has no build that works there; with the reason of each.
    """
    problems = {name: {cuda: problem(name, cuda, node) for cuda in BUILDS[name]} for name in wanted.frameworks}
    fitting = {name: {cuda for cuda, why in reasons.items() if not why} for name, reasons in problems.items()}
    for name in wanted.frameworks:
        if not fitting[name]:
            others = [other for other in wanted.frameworks if fitting[other]]
            raise _refusal(name, list(problems[name].values()), node=node, others=others)
    parts = {ONLY: wanted.frameworks}
    if not set.intersection(*fitting.values()):
        parts = {f"{ONLY}-{name}": (name,) for name in wanted.frameworks}
    environments = []
    for folder, frameworks in parts.items():
        cuda = max(set.intersection(*(fitting[name] for name in frameworks)))
        capabilities = node.capabilities or CAPABILITIES[cuda]
        environments.append(replace(wanted, folder=folder, frameworks=frameworks, cuda=cuda, capabilities=capabilities))
    return environments


def check(environment: Environment, node: Node, *, with_nvcc: bool) -> None:
    """Raise UserError if an environment that was chosen before does not work on a node, or cannot be compiled for."""
    for name in environment.frameworks:
        if environment.cuda and (why := problem(name, environment.cuda, node, with_nvcc=with_nvcc)):
            raise _refusal(name, [why], node=node)


def problem(framework: str, cuda: int, node: Node, *, with_nvcc: bool = True) -> str:
    """Return why a build does not work on a node; empty: nothing is known against it."""
    build, name = BUILDS[framework][cuda], f"CUDA {cuda}"
    if node.architecture not in build.architectures:
        return f"{name} has no wheels for {node.architecture}"
    if node.driver and numbers(node.driver)[0] < DRIVERS[cuda]:
        return f"{name} needs driver {DRIVERS[cuda]} or newer, this is {node.driver}"
    for capability in node.capabilities:
        if not numbers(build.oldest) <= numbers(capability) <= numbers(build.newest):
            return f"{name} has no code for GPUs of compute capability {capability}"
    if with_nvcc and cuda == 12 and not node.toolkit(12):
        versions = [toolkit.version for toolkit in node.toolkits]
        is_old = any(version.startswith("12.") for version in versions)
        needed = "an nvcc of 12.8 or newer for these GPUs" if is_old else "an nvcc 12, which pip does not have"
        return f"{name} needs {needed} (found: {', '.join(versions) or 'no toolkit'})"
    return ""


def numbers(version: str) -> tuple[int, ...]:
    """Return "12.10" as (12, 10), which is later than (12, 9)."""
    return tuple(map(int, version.split(".")))


def _refusal(framework: str, problems: Sequence[str], *, node: Node, others: Sequence[str] = ()) -> UserError:
    """Return the error for a framework; `others` would work."""
    remedies = []
    if any("nvcc" in why for why in problems):
        remedies.append(
            "install a CUDA 12 toolkit (launch/installation/cuda12.sh does, by sudo), load its module, "
            "or name it in HOROVOD_CUDA_HOME"
        )
    remedies += [f"set up {NAMES[other]} alone: make setup GPU=1 FRAMEWORKS={other}" for other in others]
    if any(node.architecture in build.architectures for builds in BUILDS.values() for build in builds.values()):
        remedies.append("leave the GPU unused: make setup GPU=0")
    else:  # also none for the CPU
        remedies.append(f"use other machines, as PyPI has no wheels for {node.architecture}")
    what = f"{NAMES[framework]} cannot use this node's GPU. Received: {'; '.join(problems)}"
    return UserError(f"{what}. To go on: {', or '.join(remedies)}")


def describe(node: Node, environments: Sequence[Environment]) -> list[str]:
    """Return the node and what was decided for it, each with its reason, a line each."""
    known = f"driver {node.driver or 'unknown'}, compute capability {', '.join(node.capabilities) or 'unknown'}"
    toolkits = ", ".join(f"{toolkit.version} in {toolkit.home}" for toolkit in node.toolkits) or "none"
    lines = [f"node: {node.architecture}, {known}; CUDA toolkits: {toolkits}", *node.notes]
    if not node.driver:
        needed = max(DRIVERS[environment.cuda] for environment in environments if environment.cuda)
        lines.append(f"the driver of the nodes is unknown: they need {needed} or newer")
    for environment in environments:
        assert environment.cuda
        names = " and ".join(NAMES[name] for name in environment.frameworks)
        toolkit = node.toolkit(environment.cuda)
        nvcc = f"{toolkit.version} in {toolkit.home}" if toolkit else "of pip, of PyTorch's own release of CUDA 13"
        lines.append(
            f"{environment.folder}: {names} with CUDA {environment.cuda}; nvcc {nvcc}; "
            f"Horovod for {', '.join(environment.capabilities)}"
        )
    if len(environments) > 1:
        lines.append("two environments: no CUDA major suits both frameworks here, and two do not fit into one")
    return lines
