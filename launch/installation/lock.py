"""Write `launch/installation/lock.txt`: every package that set-up installs, by version and SHA-256.

    make lock                                        keeps versions that suit pyproject.toml
    make lock ARGS="--upgrade-package numpy"         or --upgrade: all; further words go to `uv pip compile`

uv resolves the needs of pyproject.toml once, from what PyPI has, for all Pythons of `requires-python`. PyTorch's build
for the CPU is not on PyPI: its wheels are hashed where pip's settings name a local folder that has them; elsewhere
their entry stays. `tests/support/extras.txt` is locked after it: the extras, with what they need beside these packages.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from common.errors import UserError
from common.utils.command_line import run_command
from common.utils.paths import ROOT
from launch.installation.packages import Package, as_lock, for_uv, is_cuda, local_folders, pins, pip_settings, read_lock

FILE = ROOT / "launch" / "installation" / "lock.txt"
FOR_TESTS = ROOT / "tests" / "support" / "extras.txt"
EXTRAS = ("mlflow", "onnx", "parquet")  # never installed by set-up
GROUPS = ("torch", "tensorflow", "dev", "cuda12", "nvcc", "installer")  # extras; what is always needed is `base`
# Groups of the frameworks' builds, apart from what these need; PyPI's PyTorch is for CUDA 13, its torchvision for any.
BUILDS = {
    "torch": {"torch-cuda13"},
    "torchvision": {"torch-cuda13", "torch-cpu"},
    "tensorflow-cpu": {"tensorflow-cpu"},
    "tensorflow": {"tensorflow-cuda12"},
}
# TensorFlow for the CPU has wheels for this alone. Others get the same versions, as far as there are wheels.
PLACE = "platform_machine == 'x86_64' and platform_python_implementation == 'CPython' and sys_platform == 'linux'"


def main() -> None:
    """Write both files.

    Raises:
        UserError: the needs contradict each other, or no index answers.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    settings = pip_settings(listed.stdout)
    public = {key: value for key, value in settings.items() if key not in ("find-links", "extra-index-url")}
    resolve = partial(resolved, pythons=project["requires-python"], variables=for_uv(public))

    needs = {"base": project["dependencies"] + extras["horovod"], **{group: extras[group] for group in GROUPS}}
    before = read_lock(FILE)
    found = resolve([need for group in needs.values() for need in group], before)
    known = pins(found)
    reached = {group: pins(resolve(wanted, known=known)) for group, wanted in needs.items()}
    lock = [
        replace(package, groups=groups_of(package.name, {name for name in reached if package.name in reached[name]}))
        for package in found
    ]
    lock += cpu_builds(found, before, local_folders(settings))
    wanted = [*(need for extra in EXTRAS for need in extras[extra]), "onnxruntime"]
    others = [package for package in resolve(wanted, read_lock(FOR_TESTS), known) if package.name not in known]
    beside = [replace(package, groups=frozenset({"extras"})) for package in others]
    for path, packages in {FILE: lock, FOR_TESTS: beside}.items():
        path.write_text(as_lock(packages), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(packages)} packages")


def groups_of(name: str, reached: set[str]) -> frozenset[str]:
    """Return the groups of a package, from the needs that lead to it."""
    if is_cuda(name):
        return frozenset({"torch": "torch-cuda13"}.get(group, group) for group in reached)
    return frozenset(BUILDS.get(name, reached - {"cuda12"}))  # TensorFlow's builds need the same, but for CUDA


def resolved(
    needs: Sequence[str],
    before: Iterable[Package] = (),
    known: Mapping[str, str] | None = None,
    *,
    pythons: str,
    variables: Mapping[str, str],
) -> list[Package]:
    """Return what needs come to, by uv.

    Args:
        needs: as in pyproject.toml.
        before: packages whose versions and hashes are kept where they will do.
        known: versions that are fixed.
        pythons: for which they are needed, such as ">=3.11,<3.14".
        variables: for uv.

    Raises:
        UserError: there is no such set of versions, or it is not the same for all Pythons.
    """
    terms = [f"python_full_version {term}" for term in re.sub(r"([\d.]+)", r" '\1'", pythons).split(",")]
    files = {
        "pyproject.toml": f'[tool.uv]\nenvironments = ["{" and ".join([*terms, PLACE])}"]\n',
        "needs.in": "\n".join(needs),
        "known.txt": "".join(f"{name}=={version}\n" for name, version in (known or {}).items()),
        "lock.txt": "".join(str(package) for package in before if "+" not in package.version),
    }
    command = [str(Path(sys.prefix, "bin", "uv")), "pip", "compile", "--quiet", "--universal", "--no-annotate"]
    command += [f"--python-version={re.findall(r'[0-9.]+', pythons)[0]}", "--only-binary=:all:", *sys.argv[1:]]
    command += ["--generate-hashes", "--constraints=known.txt", "--output-file=lock.txt", "needs.in"]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        settings = os.environ | variables
        done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UserError(f"uv finds no versions that suit all. Received: {' '.join(done.stderr.split())[:600]}")
        text = Path(folder, "lock.txt").read_text(encoding="utf-8")
    packages = []
    for name, version, marker, hashes in re.findall(
        r"^([\w.-]+)==(\S+) ; (.*?) \\\n((?: +--hash=.*\n)+)", text, re.MULTILINE
    ):
        if re.findall(r"python_full_version \S+ '[\d.]+'", marker) != terms[1:]:
            raise UserError(f"one lock is for all Pythons. Received: {name} ; {marker}. Fix it in pyproject.toml")
        packages.append(Package(name=name, version=version, hashes=tuple(re.findall(r"--hash=(\S+)", hashes))))
    return packages


def cpu_builds(found: Iterable[Package], before: Iterable[Package], folders: Iterable[Path]) -> list[Package]:
    """Return the entry of PyTorch's build for the CPU, by the wheels at hand; without any the entry as it was."""
    (torch,) = (package for package in found if package.name == "torch")
    version = f"{torch.version}+cpu"
    wheels = [wheel for folder in folders for wheel in sorted(folder.glob(f"torch-{version}-*.whl"))]
    hashes = {f"sha256:{sha256(wheel.read_bytes()).hexdigest()}" for wheel in wheels}
    hashes.update(
        one for package in before if (package.name, package.version) == ("torch", version) for one in package.hashes
    )
    entry = replace(torch, version=version, groups=frozenset({"torch-cpu"}), hashes=tuple(sorted(hashes)))
    return [entry] if hashes else []


if __name__ == "__main__":
    sys.exit(run_command(main, program="make lock"))
