"""A SkyPilot task from nothing to its records, step by step as its machines run it, on Debian 13: 6 minutes, 4 GB.

Stand-ins: SkyPilot, whose shell around the scripts is repeated here; the cloud's machines; see `debian13`.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from debian13 import ADDRESSES, new_machine, two_machines

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
