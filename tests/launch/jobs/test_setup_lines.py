"""A site's own `setup` lines, in the script of every scheduler."""

import subprocess

import pytest
import yaml
from sites_and_jobs import a_job, own_site

from launch.jobs.schedulers import kubernetes, local, skypilot, slurm

KEYS = {
    "kubernetes": {
        "project_folder": "/twins",
        "kubernetes": {"image": "ours:1", "volume_claim": "ours", "volume_path": "/data"},
    },
    "skypilot": {"skypilot": {"region": "us-east-1"}},
}
SCRIPTS = {
    "local": local.script,
    "slurm": lambda job: slurm.render(job)[slurm.SCRIPT],
    "kubernetes": kubernetes.script,
    "skypilot": lambda job: yaml.safe_load(skypilot.render(job)[skypilot.TASK])["run"],
}


@pytest.mark.parametrize("scheduler", SCRIPTS)
def test_variables_that_are_not_set_can_be_read(tmp_path, scheduler):
    """As scripts do that set up modules."""
    keys = {"runs_folder": str(tmp_path / "runs"), "setup": ['echo "[$NOT_SET_ANYWHERE]"']}
    site = own_site(tmp_path, scheduler, **keys, **KEYS.get(scheduler, {}))
    lines = SCRIPTS[scheduler](a_job(site, gpus_per_node=0)).splitlines()
    until_setup = lines[: lines.index('echo "[$NOT_SET_ANYWHERE]"') + 1]
    variables = {"PATH": "/usr/bin:/bin", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(until_setup)], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["[]"]), done.stderr
