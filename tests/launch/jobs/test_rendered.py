"""Rendered jobs as they are kept in `tests/snapshots/`, and as others read them.

TWINS_WRITE_RENDERED=1 writes them anew; look at the difference before it is committed.

Those are shellcheck, kubectl, SkyPilot's and ParallelCluster's own parsers, and the schema of the MPI Operator.
"""

import copy
import csv
import json
import os
import re
import shutil
import subprocess

import pytest
import yaml
from cloud_parsers import ask
from published_schema import problems
from sites_and_jobs import HOSTILE, ROOT, a_job, own_site, slurm_job, slurm_site

from common.errors import UserError
from common.sites.table import read_sites
from launch.jobs.schedulers import kubernetes, scheduler, skypilot
from launch.sites.container import ContainerOptions
from launch.sites.site_files import SITE_FILES, read_launch_site
from launch.starting.launchers import Launcher

HANG_SECONDS = 120
FOLDER = ROOT / "tests" / "snapshots"


def pyxis_site():
    """Return a site whose ranks run in an image of Enroot's, with all that a job may need before its modules."""
    image = ContainerOptions(runtime="pyxis", image="nvcr.io#ours/twins:1", binds=["/data", "/scratch:/tmp"])
    return slurm_site(
        setup=["ulimit -l unlimited"], environment={"MODULEPATH": "/apps/m f"}, modules=["cuda/12"],
        purge=False, container=image, slurm={"memory": "240G"},
    )  # fmt: skip


SMOKE = {"program": None, "experiment": "smoke"}
SLURM = {
    "slurm-pyxis": slurm_job(pyxis_site(), ranks_per_node=2, gpus_per_node=2),
    "slurm-cte-power": slurm_job(
        slurm_site("cte-power"), name="resnet34", ranks_per_node=4, gpus_per_node=4,
        arguments=("--model", "resnet34", "--dataset", "prepared:data/148x197.st"), minutes=2880, preflight=True,
    ),
    "slurm-cpu": slurm_job(slurm_site(launcher="mpirun"), ranks_per_node=4, preflight=True),
    "slurm-horovodrun": slurm_job(slurm_site(launcher="horovodrun", controller="gloo")),
    "slurm-array": slurm_job(repeats=5, seed=3),
    "slurm-restarts": slurm_job(slurm_site(launcher="horovodrun"), program="keras_impl/train.py", restarts=3),
    "slurm-experiment": slurm_job(**SMOKE, arguments=("--only", "*-cnn-np2"), preflight=True),
    "slurm-at-once": slurm_job(**SMOKE, arguments=("--at-once", "4"), ranks_per_node=4, nodes=1, parts=4),
    "slurm-options": slurm_job(
        slurm_site("cte-power", slurm={
            "partition": "p", "account": "a", "qos": "q", "constraint": "x&y", "gres": "gpu:v", "memory": "0",
            "extra": ["--exclusive"],
        }), ranks_per_node=2, gpus_per_node=2, minutes=90,
    ),
}  # fmt: skip
OF_AWS = ["aws-g4dn", "aws-g5-experiment", "aws-spot"]
OF_SKYPILOT = [*OF_AWS, "gcp", "skypilot-image"]
OF_KUBERNETES = ["kubernetes", "kubernetes-horovodrun", "kubernetes-experiment"]
OPTIONS = {
    "volume_path": "/data", "namespace": "ours", "image": "ours.example:5000/twins:1e3", "volume_claim": "ours",
    "storage_class": "nfs", "ssh_path": "/root/.ssh", "node_selector": {"gpu.kind": "0123"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}, {"key": "a/b", "value": "y", "effect": "NoSchedule"}],
    "pull_secrets": ["registry"], "service_account": "trainer", "queue": "gpus",
}  # fmt: skip


def example(name, folder):
    """Return a job that is kept rendered."""
    if name in SLURM:
        return SLURM[name]
    if name == "aws-g4dn":
        return a_job(name, arguments=("--model", "resnet34", "--epochs", "3"))
    if name == "gcp":  # where the type of a machine does not imply its GPUs
        return a_job(name, nodes=1, gpus_per_node=8)
    if name == "skypilot-image":
        places = {"project_folder": "/opt/twins", "python": "/opt/venv/bin/python"}
        return a_job(own_site(folder, "skypilot", **places, skypilot={"image": "ours/twins:1"}))
    if name == "aws-g5-experiment":
        return a_job("aws-g5", nodes=1, **SMOKE, arguments=("--only", "*-np[12]*"), preflight=False)
    if name == "aws-spot":
        options = {"region": "us-east-1", "bucket": "s3://ours", "disk_gb": 100}
        folders = {"runs_folder": "/bucket/runs", "data_folder": "/tmp/a b/$(touch hit)"}
        site = own_site(folder, "skypilot", **folders, skypilot=options)
        return a_job(
            site, name="Demo_2", spot=True, repeats=2, seed=7, minutes=90, program="torch_impl/train.py",
            arguments=("--model", "resnet34", "--epochs", "3"),
        )  # fmt: skip
    if name == "kubernetes":
        return a_job(name, arguments=("--learning-rate", "1e-3"), repeats=2)
    folders = {"project_folder": "/opt/twins", "python": "/opt/twins/.venv/bin/python", "runs_folder": "/data/runs"}
    site = own_site(folder, "kubernetes", kubernetes=OPTIONS, **folders, launcher="horovodrun")
    if name == "kubernetes-horovodrun":
        return a_job(site, repeats=2, seed=3)
    return a_job(site, name="Smoke_1", **SMOKE, nodes=1, ranks_per_node=2, gpus_per_node=0, minutes=1440)


def check_kept(name, files):
    """Compare what was rendered with the files of one folder, byte for byte."""
    folder = FOLDER / name
    if os.environ.get("TWINS_WRITE_RENDERED") == "1":
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_bytes(text.encode())
    assert files == {path.name: path.read_bytes().decode() for path in folder.glob("*")}


def scripts_of(files):
    """Return the scripts in rendered files; those of pods are words of one line."""
    task = yaml.safe_load(files[skypilot.TASK]) if skypilot.TASK in files else {}
    return [text for name, text in files.items() if name.endswith(".sh")] + [
        f"#!/bin/bash\n{task[step]}" for step in ("setup", "run") if step in task
    ]


@pytest.mark.parametrize("name", [*SLURM, *OF_SKYPILOT, *OF_KUBERNETES])
def test_files_are_as_kept_and_pass_shellcheck(name, tmp_path):
    job = example(name, tmp_path)
    files = scheduler(job.site.scheduler).render(job)
    check_kept(name, files)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    meant = ["--exclude=SC2016"] if name in OF_SKYPILOT else []  # a "$" in single quotes
    for script in scripts_of(files):
        words = ["shellcheck", *meant, "-"]
        done = subprocess.run(words, input=script, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert done.returncode == 0, done.stdout


def test_ranks_in_an_image_of_enroot_are_all_started_by_srun():
    """One that is alone, too."""
    arguments = ["--epochs", "1"]
    words = Launcher(site=pyxis_site(), node="slurm").single_process("torch_impl/train.py", arguments=arguments)
    assert words == [
        *("srun", "--mpi=pmix", "--container-image=nvcr.io#ours/twins:1"),
        "--container-mounts=/home/group/horovod-twins,/data,/scratch:/tmp",
        *("--container-workdir=/home/group/horovod-twins", "--ntasks", "1"),
        *("python", "/opt/horovod-twins/torch_impl/train.py", *arguments, "--site", "slurm"),
    ]


# SkyPilot


def task_of(job):
    return yaml.safe_load(skypilot.render(job)[skypilot.TASK])


RECIPE = "launch/recipes/notebook-mnist.toml"
SHIPPED = "launch/experiments/shipped/smoke.toml"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"program": None, "experiment": f"{ROOT}/{SHIPPED}"}, f" experiment run {SHIPPED} "),
        ({"arguments": ("--recipe", f"{ROOT}/{RECIPE}")}, f" --recipe {RECIPE} "),
        ({"arguments": (f"--recipe={ROOT}/{RECIPE}",)}, f" --recipe={RECIPE} "),
        ({"program": None, "experiment": "/elsewhere/x.toml"}, "experiment's file is not in the project"),
        ({"arguments": ("--recipe=../x.toml",)}, "recipe's file is not in the project"),
    ],
)
def test_files_in_the_project_come_along_and_others_are_refused(changes, words):
    job = a_job("aws-g4dn", **changes)
    if words.endswith(" "):
        assert words in task_of(job)["run"]
    else:
        with pytest.raises(UserError, match=words):
            skypilot.render(job)


_COLUMNS = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch"
)


def write_catalog(path):
    """Write what SkyPilot would fetch: the machines of the cloud, here those of our table that can still be had."""
    table = read_sites()
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS.split(","))
        for name, site in table.sites.items():
            price = site.price()
            if name.startswith("aws-") and price and not site.retired:
                gpu = (site.gpu or "").upper()
                info = {"Gpus": [{"Name": gpu, "Count": site.gpus, "MemoryInfo": {"SizeInMiB": 16384}}]}
                machine = [site.instance_type, gpu, site.gpus, site.cores, site.memory_gb, info]
                writer.writerow([*machine, *[price.usd_per_hour] * 2, "us-east-1", "us-east-1a", "x86_64"])


@pytest.mark.ci
def test_skypilot_takes_the_kept_tasks_and_refuses_what_it_does_not_know(tmp_path):
    write_catalog(tmp_path / ".sky" / "catalogs" / "v8" / "aws" / "vms.csv")
    files = {name: FOLDER / name / skypilot.TASK for name in OF_AWS}
    tasks = {name: yaml.safe_load(file.read_text()) for name, file in files.items()}
    retired = {"resources": {**tasks["aws-g4dn"]["resources"], "instance_type": "p3.8xlarge"}}
    for name, change in {"unknown": {"nodes": 2}, "retired": retired}.items():
        files[name] = tmp_path / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump({**tasks["aws-g4dn"], **change}))
    variables = {"SKY_RUNTIME_DIR": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    parsed = ask("skypilot", [*files.values()], home=tmp_path, variables=variables)
    answers = dict(zip(files, parsed, strict=True))
    assert "Instead of 'nodes', did you mean 'num_nodes'?" in answers["unknown"]["error"]
    assert "p3.8xlarge" in answers["retired"]["error"]
    for name, task in tasks.items():
        answer = answers[name]
        assert "error" not in answer, answer
        assert (answer["setup"], answer["run"], answer["nodes"]) == (task["setup"], task["run"], task["num_nodes"])
        assert answer["workdir"] == "."
    on_demand, spot = answers["aws-g4dn"], answers["aws-spot"]
    assert on_demand["machine"] == ["AWS", "us-east-1", "g4dn.12xlarge", {"T4": 4}]
    assert (on_demand["use_spot"], on_demand["autostop"], on_demand["buckets"]) == (False, [10, False], {})
    assert (spot["use_spot"], spot["disk_size"], spot["buckets"]) == (True, 100, {"/bucket": "s3://ours"})


@pytest.mark.ci
def test_parallelcluster_takes_the_cluster_that_the_site_is_for(tmp_path):
    """That of the how-to for Slurm on AWS."""
    cluster, wrong = SITE_FILES / "aws-parallelcluster.yaml", tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump({**yaml.safe_load(cluster.read_text()), "Queues": []}))
    variables = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    parsed, refused = ask("parallelcluster", [cluster, wrong], home=tmp_path, variables=variables)
    site = read_launch_site("aws-parallelcluster")
    types = [site.machines[node].instance_type for node in site.nodes]
    assert parsed == {"scheduler": "slurm", "queues": {site.slurm.partition: [types]}, "shared": ["/shared"]}
    assert "Unknown field" in refused["error"]


# Kubernetes


def kept():
    return sorted(path for name in OF_KUBERNETES for path in (FOLDER / name).glob("*.yaml"))


@pytest.mark.parametrize("path", kept(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kept_files_follow_the_published_schema(path):
    assert problems(yaml.safe_load(path.read_text())) == []


def places(part):
    """Yield all tables and lists with their keys, but those whose keys are the user's."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        yield part, key
        if isinstance(value, dict | list) and key not in ("limits", "requests", "nodeSelector", "labels"):
            yield from places(value)


def test_the_published_schema_finds_an_unknown_field_and_another_type_anywhere():
    """So the test before this one can fail."""
    table = yaml.safe_load((FOLDER / "kubernetes-experiment" / kubernetes.JOB_FILE).read_text())
    for number in range(len(list(places(table["spec"])))):
        changed = copy.deepcopy(table)
        part, key = list(places(changed["spec"]))[number]
        part[key] = 1.5
        assert problems(changed), key
        if isinstance(part, dict) and key not in ("Launcher", "Worker"):
            part["replica"] = part.pop(key)
            assert any("unknown field replica" in problem for problem in problems(changed)), key
    assert number > 80


def test_kubectl_reads_the_files_as_they_were_meant(tmp_path):
    """Its reader takes `1e-3` and `y` for a number and a truth value where they are not quoted."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed (Debian: kubernetes-client)")
    for name, text in kubernetes.render(a_job("kubernetes", arguments=tuple(HOSTILE), preflight=False)).items():
        (tmp_path / name).write_text(text)
    for path in [*kept(), *tmp_path.glob("*.yaml")]:
        done = subprocess.run(
            [kubectl, "annotate", "--local", "--output", "json", "--filename", str(path), "x=y"],
            capture_output=True, text=True, timeout=HANG_SECONDS,
            env={"HOME": str(tmp_path), "KUBECONFIG": os.devnull, "PATH": os.environ["PATH"]},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        table, expected = json.loads(done.stdout), yaml.safe_load(path.read_text())
        assert table["metadata"].pop("annotations") == {"x": "y"}
        if expected["kind"] == "MPIJob":  # what is known to kubectl comes with its defaults
            assert table == expected


@pytest.mark.parametrize(
    ("name", "label"),
    [("Demo_1.2+x", "demo-1-2-x"), ("2026-demo", "job-2026-demo"), ("__", "job"), ("a" * 54, "a" * 54)],
)
def test_names_of_jobs_become_names_of_hosts(name, label):
    """Also that of the last worker, by whose name the operator makes a label of DNS."""
    files = kubernetes.render(a_job("kubernetes", name=name))
    assert yaml.safe_load(files[kubernetes.JOB_FILE])["metadata"]["name"] == label
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", f"{label}-worker-1")
