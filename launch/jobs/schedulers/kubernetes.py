"""Kubernetes: an MPIJob of the MPI Operator. Its launcher's pod starts ranks in the pods of workers, one a node.

What is rendered is tested against the operator's types (`tests/support/mpijob_schema.json`). Nothing of it has run on a
cluster yet.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.run_folder.start_times import TIMESTAMPS
from launch.jobs.cloud import for_remote, host_label, read_answer, require, run_program, site_lines
from launch.jobs.job import Job, JobRecord, JobState, JobStatus
from launch.jobs.schedulers.yaml_text import to_yaml
from launch.jobs.scripts import experiment_words, preflight_words, prologue, repeats_words, run_lines, variables
from launch.starting.launchers import Launcher
from launch.starting.shell import line

JOB_FILE = "mpijob.yaml"
VOLUME_FILE = "volume.yaml"
FILES_FILE = "files-pod.yaml"
# The operator writes it, a line a worker: "NAME slots=N" (`newConfigMap` of mpi_job_controller.go).
HOST_FILE = "/etc/mpi/hostfile"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"  # Kueue, "Run a MPIJob"
LABEL_LENGTH = 63  # of names that become host names
BESIDE_SECONDS = 600  # beside the time limits of all runs, which the script keeps: preflight, starts, ends
FILES_SECONDS = 3600  # how long the pod lives through which run folders are fetched
# Labels of the launcher's pod (`defaultLabels` of mpi_job_controller.go).
_LABELS = "training.kubeflow.org/job-name={},training.kubeflow.org/job-role=launcher"
_STATES: dict[str, JobState] = {
    "Succeeded": "finished", "Failed": "failed", "Suspended": "queued", "Restarting": "running",
    "Running": "running", "Created": "queued",
}  # fmt: skip


def render(job: Job) -> dict[str, str]:
    """Return the volume's claim, the MPIJob, and the pod through which run folders are fetched.

    Raises:
        UserError: the site does not say what an MPIJob needs.
    """
    _check(job)
    name = _name(job.name, workers=job.nodes)
    files = {VOLUME_FILE: _claim(job), JOB_FILE: _mpi_job(job, name=name), FILES_FILE: _files_pod(job, name=name)}
    return {file: to_yaml(table) for file, table in files.items()}


def _check(job: Job) -> None:
    site, options = job.site, job.site.kubernetes
    if site.project_folder is None or not job.python.startswith("/"):
        raise UserError(
            f"the site does not say where its image holds the project. Received: project_folder "
            f"{site.project_folder}, python {site.python}. Write both into {site.file}, from /"
        )
    if not Path(job.runs_folder).is_relative_to(options.volume_path):
        raise UserError(
            f"run folders would be lost with the pods. Received: runs_folder {site.runs_folder}. "
            f"Write a folder under {options.volume_path} into {site.file}"
        )


def _name(name: str, *, workers: int) -> str:
    # The longest host name that the operator makes of it (`workerName` of mpi_job_controller.go).
    longest = max(len(f"-worker-{workers - 1}"), len("-launcher"))
    return host_label(name, longest=LABEL_LENGTH - longest)


def _mpi_job(job: Job, *, name: str) -> dict[str, Any]:
    """Return the MPIJob.

    The launcher, and with it the time limit, starts when all workers are ready: waiting for nodes is free. It is
    not restarted when it fails: the cause would fail it again.
    """
    options, ranks = job.site.kubernetes, job.ranks_per_node
    labels = {QUEUE_LABEL: options.queue} if options.queue else {}
    command = ["bash", "-c", literal(script(job))]
    launcher = _pod_spec(job, _container(job, "launcher", command=command, cpus=1, memory_gb=4))
    # Without a command the operator starts sshd in it.
    worker = _container(
        job,
        "worker",
        cpus=ranks * options.cpus_per_rank,
        memory_gb=ranks * options.memory_gb_per_rank,
        gpus=job.gpus_per_node,
    )
    # MPI and NCCL exchange through it, and containers get 64 MB of it.
    worker["volumeMounts"].append({"name": "shared-memory", "mountPath": "/dev/shm"})
    workers = _pod_spec(job, worker, selector=options.node_selector)
    workers["volumes"].append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "namespace": options.namespace, **({"labels": labels} if labels else {})},
        "spec": {
            "slotsPerWorker": ranks,
            "runPolicy": {
                "cleanPodPolicy": "Running",
                "activeDeadlineSeconds": 60 * job.total_minutes + BESIDE_SECONDS,
                "backoffLimit": 0,
            },
            "sshAuthMountPath": options.ssh_path,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiImplementation": "OpenMPI",
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": {"spec": launcher}},
                "Worker": {"replicas": job.nodes, "restartPolicy": "Never", "template": {"spec": workers}},
            },
        },
    }


def _container(
    job: Job, name: str, *, cpus: int, memory_gb: float, gpus: int = 0, command: list[str] | None = None
) -> dict[str, Any]:
    """Return a container that sees the volume; what it gets is all for itself: requests equal to limits."""
    table = {"cpu": str(cpus), "memory": f"{memory_gb * 1000:.0f}M"}
    if gpus:
        table["nvidia.com/gpu"] = str(gpus)
    return {
        "name": name,
        "image": job.site.kubernetes.image,
        **({"command": command} if command else {}),
        "resources": {"requests": table, "limits": dict(table)},
        "volumeMounts": [{"name": "volume", "mountPath": job.site.kubernetes.volume_path}],
    }


def _pod_spec(
    job: Job, container: dict[str, Any], *, selector: dict[str, str] | None = None, restart_policy: str | None = None
) -> dict[str, Any]:
    options = job.site.kubernetes
    tolerations = [{name: value for name, value in vars(one).items() if value} for one in options.tolerations]
    return {
        "containers": [container],
        "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": options.volume_claim}}],
        **({"nodeSelector": selector} if selector else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        **({"imagePullSecrets": [{"name": name} for name in options.pull_secrets]} if options.pull_secrets else {}),
        **({"serviceAccountName": options.service_account} if options.service_account else {}),
        **({"restartPolicy": restart_policy} if restart_policy else {}),
        **({"securityContext": {"fsGroup": options.group_id}} if options.group_id is not None else {}),
    }


def _files_pod(job: Job, *, name: str) -> dict[str, Any]:
    """Return the pod through which run folders are fetched."""
    container = _container(job, "files", command=["sleep", str(FILES_SECONDS)], cpus=1, memory_gb=1)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _files_pod_name(name), "namespace": job.site.kubernetes.namespace},
        "spec": _pod_spec(job, container, restart_policy="Never"),
    }


def _files_pod_name(name: str) -> str:
    return f"{name}-files"


def _claim(job: Job) -> dict[str, Any]:
    """Return the claim of a volume that the pods of all nodes write to."""
    options = job.site.kubernetes
    storage_class = {"storageClassName": options.storage_class} if options.storage_class else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": options.volume_claim, "namespace": options.namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": f"{options.volume_gb}G"}},
            **storage_class,
        },
    }


def script(job: Job) -> str:
    """Return what the launcher's shell does."""
    assert job.site.project_folder
    there = for_remote(job, project_folder=job.site.project_folder)
    # Not -u: scripts that set up modules read variables that are not set.
    lines = ["set -e", *site_lines(job), *prologue(there)]
    if job.preflight:
        lines.append(line(preflight_words(there, hosts=HOST_FILE)))
    if job.experiment:
        lines += run_lines(job, [experiment_words(there, hosts=HOST_FILE)])
    else:
        lines += run_lines(job, repeats_words(there, start=_start_words(there), hosts=HOST_FILE))
    # In the place of the shell, which as the first process of a pod would not pass on that the pod is to end.
    lines[-1] = f"exec {lines[-1]}"
    return "".join(f"{one}\n" for one in lines)


def literal(text: str) -> str:
    """Return a word of a container's command that Kubernetes reads as this text.

    It replaces `$(NAME)` by a variable and `$$` by `$` (Expand in third_party/forked/golang/expansion/expand.go).
    """
    return re.sub(r"\$(?=[$(])", "$$", text)


def _start_words(job: Job) -> list[str]:
    """Return the command that starts all ranks on the workers, whom the operator names in its host file."""
    words = Launcher(site=job.site).words(np=job.size)
    if words[0] == "horovodrun":
        return [*words[:3], "--hostfile", HOST_FILE, *words[3:]]
    # mpirun finds the host file by itself. ssh brings no variables along, so that they have to be named.
    handed_on = [word for name in ("PATH", *variables(job), *TIMESTAMPS) for word in ("-x", name)]
    return [*words, "--bind-to", "none", "--map-by", "slot", *handed_on]


def submit(job: Job, folder: Path, *, keep: Callable[[str], None]) -> str:
    """Make the volume's claim where there is none, then the MPIJob; its id is its name.

    It is made by `create`, not `apply`: that would change a job of the same name that is there.
    """
    options = job.site.kubernetes
    kubectl = _kubectl(options.namespace)
    claim = ["get", "persistentvolumeclaim", options.volume_claim, "--ignore-not-found", "--output", "name"]
    if not run_program([*kubectl, *claim], remedy=_LOOK).strip():
        run_program([*kubectl, "create", "--filename", str((folder / VOLUME_FILE).resolve())], remedy=_LOOK)
    identifier = _name(job.name, workers=job.nodes)
    there = ["get", "mpijob", identifier, "--ignore-not-found", "--output", "name"]
    if run_program([*kubectl, *there], remedy=_LOOK).strip():  # `cancel` would end it
        raise UserError(f"there is a job of this name already. Received: {identifier}. Give another --name")
    keep(identifier)
    run_program([*kubectl, "create", "--filename", str((folder / JOB_FILE).resolve())], remedy=_LOOK)
    return identifier


@dataclass(frozen=True)
class _Condition:
    """A condition of an MPIJob, as Kubernetes gives it."""

    type: str
    status: str
    message: str = ""


@dataclass(frozen=True)
class _Standing:
    conditions: list[_Condition] = field(default_factory=list)


@dataclass(frozen=True)
class _Answer:
    """What is read of the MPIJob that kubectl prints."""

    status: _Standing = field(default_factory=_Standing)


_LOOK = "See `kubectl cluster-info` and `kubectl get crd mpijobs.kubeflow.org`"


def state(record: JobRecord, folder: Path) -> JobStatus:
    """Return the status of the job: the last of its conditions that is true."""
    words = ["get", "mpijob", record.id, "--ignore-not-found", "--output", "json"]
    text = run_program([*_kubectl_of(record), *words], remedy=_LOOK)
    if not text.strip():
        return JobStatus("gone", "the cluster no longer knows it")
    conditions = read_answer(text, _Answer, source="kubectl").status.conditions
    holding = {one.type: one for one in conditions if one.status == "True"}
    for kind, standing in _STATES.items():
        if kind in holding:
            reason = holding[kind].message if standing in ("failed", "queued") else ""
            return JobStatus(standing, " ".join(reason.split()))
    return JobStatus("queued", "the operator has not seen it yet")


def logs(record: JobRecord, folder: Path) -> list[str]:
    """Return the command that prints what the launcher's pod has printed, and with it all ranks."""
    require("kubectl")
    return [*_kubectl_of(record), "logs", "--selector", _LABELS.format(record.id), "--tail", "-1"]


def cancel(record: JobRecord, folder: Path) -> None:
    """Delete the MPIJob, and all its pods with it."""
    run_program([*_kubectl_of(record), "delete", "mpijob", record.id, "--wait=false"], remedy=_LOOK)


def shell(record: JobRecord, folder: Path) -> list[str]:
    """Return the command before one that is to run in a pod that sees the volume; the pod is made if it is needed."""
    kubectl, pod = _kubectl_of(record), _files_pod_name(record.id)
    words = ["get", "pod", pod, "--ignore-not-found", "--output", "jsonpath={.status.phase}"]
    phase = run_program([*kubectl, *words], remedy=_LOOK).strip()
    if phase in ("Succeeded", "Failed"):
        run_program([*kubectl, "delete", "pod", pod], remedy=_LOOK)
    if phase not in ("Pending", "Running"):
        run_program([*kubectl, "create", "--filename", str((folder / FILES_FILE).resolve())], remedy=_LOOK)
    run_program([*kubectl, "wait", "--for=condition=Ready", "--timeout=300s", f"pod/{pod}"], remedy=_LOOK)
    return [*kubectl, "exec", "--stdin", pod, "--"]


def _kubectl(namespace: str) -> list[str]:
    return ["kubectl", f"--namespace={namespace}"]


def _kubectl_of(record: JobRecord) -> list[str]:
    return _kubectl(record.read_site().kubernetes.namespace)
