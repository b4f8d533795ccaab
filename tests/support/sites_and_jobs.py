"""Sites of one's own, jobs for them, and their submission, as tests need them."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from processes import call

from common.run_folder.records import now, read_run
from launch import __main__ as launch
from launch.jobs.job import Job, JobRecord
from launch.sites.site_files import read_launch_site

ROOT = Path(__file__).resolve().parents[2]
NODES = {"skypilot": ["aws-g4dn-xlarge", "aws-g4dn-12xlarge"]}  # of others: the node of the scheduler's name
# Words that a shell, YAML or a launcher could read otherwise.
HOSTILE = ["a b", "it's", 'say "x"', "$(touch hit)", "`touch hit`", ";touch hit", "a&&touch hit", "$HOME", "*", "\\",
           "$$", "$$(HOME)", "1e-3", "0o17", "y", "no", "null", "~", "{a: b}", "# x", "- x", "ü", "-x"]  # fmt: skip
UNSET = ['echo "[$NOT_SET_ANYWHERE]"']  # lines of a site that read a variable that is not set


def own_site(folder, scheduler="local", *, name="ours", **values):
    """Write the file of a site with these keys of [launch], dictionaries as its tables; return its path."""
    values = {"nodes": NODES.get(scheduler, [scheduler])} | values
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f'[launch]\ntitle = "{name}"\nsource = "{name}"\nchecked = 2026-11-21\nscheduler = "{scheduler}"']
    lines += [f"{key} = {in_toml(value)}" for key, value in values.items() if key not in tables]
    for table, entries in tables.items():
        lines += ["", f"[launch.{table}]", *(f"{key} = {in_toml(value)}" for key, value in entries.items())]
    file = folder / f"{name}.toml"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def in_toml(value):
    if isinstance(value, dict):
        keys = {key: key if key.isidentifier() else json.dumps(key) for key in value}
        return "{ " + ", ".join(f"{keys[key]} = {in_toml(part)}" for key, part in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    return json.dumps(value)


def a_job(site, **changes):
    """Return a job of Keras at a site, its name or what was read of it: 4 ranks and GPUs on each of 2 nodes."""
    place = read_launch_site(site) if isinstance(site, str) else site
    gpus = changes.get("gpus_per_node", 4)
    values = {
        "name": "demo", "site": place, "node": place.node_for(gpus)[0], "nodes": 2, "ranks_per_node": 4,
        "gpus_per_node": gpus, "program": "keras_impl/train.py", "experiment": None, "arguments": (), "minutes": 60,
    }  # fmt: skip
    return Job(**{**values, **changes})


def slurm_site(name="slurm", **changes):
    """Return a shipped site with folders that do not depend on where the tests run; options of Slurm may be changed."""
    folders = {"project_folder": "/home/group/horovod-twins", "python": ".venv/bin/python"}
    options = changes.pop("slurm", {})
    site = replace(read_launch_site(name), **{**folders, **changes})
    return replace(site, slurm=replace(site.slurm, **options))


def slurm_job(site=None, **changes):
    """Return a job of PyTorch on 2 nodes of Slurm, a rank on each."""
    values = {"name": "trial", "ranks_per_node": 1, "gpus_per_node": 0, "program": "torch_impl/train.py",
              "arguments": ("--epochs", "3"), "preflight": False}  # fmt: skip
    return a_job(site or slurm_site(), **{**values, **changes})


def job_record(site, **changes):
    values = {"name": "demo", "id": "demo", "submitted_at": now(), "command": [], "size": 8, "repeats": 1, "runs": []}
    return JobRecord(site=site, **{**values, **changes})


@dataclass(frozen=True)
class Desk:
    """Where jobs are submitted: their records are in `jobs` of the folder, their runs in `runs`."""

    folder: Path

    def check(self, command, *words, **expected):
        """Give a command about jobs, see `call`; return what it printed."""
        return call(launch.main, command, "--jobs-folder", str(self.folder / "jobs"), *words, **expected)

    def job(self, name):
        return self.folder / "jobs" / name

    def run(self, name):
        return read_run(self.folder / "runs" / name)
