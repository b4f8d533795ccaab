"""Write `launch/installation/lock.txt`: every package that set-up installs, by version and SHA-256.

    make lock                                        keeps versions that suit pyproject.toml
    make lock ARGS="--upgrade-package numpy"         or --upgrade: all

uv resolves the needs of pyproject.toml once, from what PyPI has, for all Pythons of `requires-python`. PyTorch's build
for the CPU is not on PyPI: its wheels are hashed where pip's settings name a local folder that has them; elsewhere
their entry stays. `tests/support/extras.txt` is locked after it: the extras, with what they need beside these packages.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
# TensorFlow for the CPU has wheels for this alone. Others get the same versions, as far as there are wheels.
PLACE = "platform_machine == 'x86_64' and platform_python_implementation == 'CPython' and sys_platform == 'linux'"
# Groups of the frameworks' builds, apart from what these need; PyPI's PyTorch is for CUDA 13, its torchvision for any.
BUILDS = {
    "torch": {"torch-cuda13"},
    "torchvision": {"torch-cuda13", "torch-cpu"},
    "tensorflow-cpu": {"tensorflow-cpu"},
    "tensorflow": {"tensorflow-cuda12"},
}
BLOCK = re.compile(r"^([\w.-]+)==(\S+)(?: ; (.+?))?((?: \\\n    --hash=\S+)+)\n((?:    #.*\n)+)", re.MULTILINE)


def main() -> None:
    """Write both files.

    Raises:
        UserError: the needs contradict each other, or no index answers.
    """
    parser = argparse.ArgumentParser(prog="make lock")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parser.add_argument("--upgrade-package", action="append", default=[], metavar="NAME", help="of this package")
    options = parser.parse_args()
    words = ["--upgrade"] * options.upgrade + [f"--upgrade-package={name}" for name in options.upgrade_package]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    settings = pip_settings(listed.stdout)
    resolver = Resolver(pythons=project["requires-python"], settings=settings, words=words)

    needs = {"base": project["dependencies"] + extras["horovod"], **{group: extras[group] for group in GROUPS}}
    found = resolver.resolve(needs, FILE)
    lock = [*found, *cpu_builds(found, read_lock(FILE), local_folders(settings))]
    known = pins(found)
    wanted = [*(need for extra in EXTRAS for need in extras[extra]), "onnxruntime"]
    beside = [one for one in resolver.resolve({"extras": wanted}, FOR_TESTS, known) if one.name not in known]
    for path, packages in {FILE: lock, FOR_TESTS: beside}.items():
        path.write_text(as_lock(packages), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(packages)} packages")


@dataclass(frozen=True, kw_only=True)
class Resolver:
    """uv, for these Pythons ('>=3.11,<3.14'), with the index that pip's settings name, and these words of uv's own."""

    pythons: str
    settings: Mapping[str, str]
    words: Sequence[str]

    def resolve(self, needs: Mapping[str, Sequence[str]], before: Path, known: Mapping[str, str] = {}) -> list[Package]:
        """Return what groups of needs come to, with the groups of each package.

        Args:
            needs: of each group.
            before: the lock file whose versions are kept.
            known: versions that are fixed.

        Raises:
            UserError: there is no such set of versions.
        """
        least, *_ = re.findall(r"[\d.]+", self.pythons)
        terms = [f"python_full_version {part}" for part in re.sub(r"([\d.]+)", r" '\1'", self.pythons).split(",")]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            place = " and ".join([*terms, PLACE])
            (folder / "pyproject.toml").write_text(f'[tool.uv]\nenvironments = ["{place}"]\n', encoding="utf-8")
            (folder / "known.txt").write_text("".join(f"{n}=={v}\n" for n, v in known.items()), encoding="utf-8")
            public = [package for package in read_lock(before) if "+" not in package.version]
            (folder / "lock.txt").write_text("".join(map(str, public)), encoding="utf-8")
            for group, wanted in needs.items():
                (folder / f"{group}.in").write_text("\n".join(wanted), encoding="utf-8")
            command = [str(Path(sys.prefix, "bin", "uv")), "pip", "compile", "--quiet", "--universal", "--no-header"]
            command += [f"--python-version={least}", "--generate-hashes", "--only-binary=:all:", *self.words]
            command += ["--constraints=known.txt", "--output-file=lock.txt", *(f"{group}.in" for group in needs)]
            only = {
                name: value for name, value in self.settings.items() if name not in ("find-links", "extra-index-url")
            }
            done = subprocess.run(
                command, cwd=folder, env=os.environ | for_uv(only), capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise UserError(f"uv finds no versions that suit all. Received: {' '.join(done.stderr.split())[:600]}")
            return grouped((folder / "lock.txt").read_text(encoding="utf-8"), known_terms={*place.split(" and ")})


def grouped(text: str, *, known_terms: set[str]) -> list[Package]:
    """Return the packages of uv's file, each with the groups that reach it by what uv says each comes from."""
    blocks = BLOCK.findall(text)
    parents = {name: re.findall(r"#   (?!-c )(\S.*)", f"{via}".replace("# via ", "#   ")) for name, *_, via in blocks}
    packages = []
    for name, version, marker, hashes, _ in blocks:
        groups, seen, todo = set[str](), set[str](), [name]
        while todo:
            for parent in parents[todo.pop()]:
                if parent.startswith("-r "):
                    groups.add(parent.removeprefix("-r ").removesuffix(".in"))
                elif parent not in seen:
                    seen.add(parent)
                    todo.append(parent)
        if name in BUILDS:
            groups = BUILDS[name]
        elif is_cuda(name):
            groups = {{"torch": "torch-cuda13"}.get(group, group) for group in groups}
        else:  # TensorFlow's two builds need the same, but for CUDA
            groups -= {"cuda12"}
        packages.append(
            Package(
                name=name,
                version=version,
                groups=frozenset(groups),
                hashes=tuple(re.findall(r"--hash=(\S+)", hashes)),
                marker=" and ".join(term for term in marker.split(" and ") if term not in {*known_terms, ""}),
            )
        )
    return packages


def cpu_builds(found: Iterable[Package], before: Iterable[Package], folders: Iterable[Path]) -> list[Package]:
    """Return the entry of PyTorch's build for the CPU, by the wheels at hand; without any the entry as it was."""
    (torch,) = (package for package in found if package.name == "torch")
    version = f"{torch.version}+cpu"
    wheels = [wheel for folder in folders for wheel in sorted(folder.glob(f"torch-{version}-*.whl"))]
    hashes = {f"sha256:{sha256(wheel.read_bytes()).hexdigest()}" for wheel in wheels}
    old = [package for package in before if (package.name, package.version) == ("torch", version)]
    hashes.update(one for package in old for one in package.hashes)
    return (
        [replace(torch, version=version, groups=frozenset({"torch-cpu"}), hashes=tuple(sorted(hashes)))]
        if hashes
        else []
    )


if __name__ == "__main__":
    sys.exit(run_command(main, program="make lock"))
