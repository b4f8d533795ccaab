"""Kubernetes: an MPIJob of the MPI Operator. Its launcher's pod starts ranks in the pods of workers, one a node.

What is rendered is checked by the types of `launch/jobs/schedulers/mpijob.py`. Nothing of it has run on a cluster yet.
"""

import re
from pathlib import Path

from pydantic import ValidationError

from common.errors import UserError, first_problem
from common.utils.timestamps import TIMESTAMPS
from launch.jobs.cloud import for_remote, host_label, parse_json, require, run_program, site_lines
from launch.jobs.job import Job, JobRecord, JobState, JobStatus
from launch.jobs.schedulers.mpijob import (
    LABEL_LENGTH,
    ClaimSource,
    Container,
    EmptyDirectory,
    Metadata,
    MPIJob,
    MPIJobSpec,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    Pod,
    PodSecurityContext,
    PodSpec,
    PodTemplate,
    ReplicaSpec,
    ReplicaSpecs,
    Resources,
    RunPolicy,
    Volume,
    VolumeMount,
    host_name,
)
from launch.jobs.schedulers.yaml_text import to_yaml
from launch.jobs.scripts import RECORD_START, experiment_words, preflight_words, prologue, trainer_words, variables
from launch.starting.launchers import Launcher
from launch.starting.shell import line

JOB_FILE = "mpijob.yaml"
VOLUME_FILE = "volume.yaml"
FILES_FILE = "files-pod.yaml"
# The operator writes it, a line a worker: "NAME slots=N" (`newConfigMap` of mpi_job_controller.go).
HOST_FILE = "/etc/mpi/hostfile"
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
        UserError: the site does not say what an MPIJob needs, or Kubernetes would not take what it says.
    """
    _check(job)
    name = _name(job.name, workers=job.nodes)
    try:
        return {
            VOLUME_FILE: to_yaml(_claim(job).table()),
            JOB_FILE: to_yaml(_mpi_job(job, name=name).table()),
            FILES_FILE: to_yaml(_files_pod(job, name=name).table()),
        }
    except ValidationError as error:
        raise UserError(f"Kubernetes would not take this: {first_problem(error)}. Correct {job.site.file}") from None


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
    longest = max(len(host_name("", worker=workers - 1)), len("-launcher"))
    return host_label(name, longest=LABEL_LENGTH - longest)


def _mpi_job(job: Job, *, name: str) -> MPIJob:
    """Return the MPIJob.

    The launcher, and with it the time limit, starts when all workers are ready: waiting for nodes is free. It is
    not restarted when it fails: the cause would fail it again.
    """
    options = job.site.kubernetes
    return MPIJob(
        metadata=Metadata(name=name, namespace=options.namespace),
        spec=MPIJobSpec(
            slots_per_worker=job.ranks_per_node,
            run_policy=RunPolicy(clean_pod_policy="Running", active_deadline_seconds=60 * job.minutes, backoff_limit=0),
            ssh_auth_mount_path=options.ssh_path,
            launcher_creation_policy="WaitForWorkersReady",
            mpi_implementation="OpenMPI",
            mpi_replica_specs=ReplicaSpecs(
                launcher=ReplicaSpec(replicas=1, restart_policy="Never", template=PodTemplate(spec=_launcher(job))),
                worker=ReplicaSpec(replicas=job.nodes, restart_policy="Never", template=PodTemplate(spec=_worker(job))),
            ),
        ),
    )


def _launcher(job: Job) -> PodSpec:
    """Return the pod that looks over the workers and starts the ranks; it computes nothing."""
    options = job.site.kubernetes
    container = Container(
        name="launcher",
        image=options.image,
        command=["bash", "-c", literal(script(job))],
        resources=_resources(cpus=1, memory_gb=4),
        volume_mounts=[VolumeMount(name="volume", mount_path=options.volume_path)],
    )
    return PodSpec(containers=[container], volumes=[_volume(job)], security_context=_security(job))


def _worker(job: Job) -> PodSpec:
    """Return the pod of a worker; without a command the operator starts sshd in it."""
    options, ranks = job.site.kubernetes, job.ranks_per_node
    container = Container(
        name="worker",
        image=options.image,
        resources=_resources(
            cpus=ranks * options.cpus_per_rank, memory_gb=ranks * options.memory_gb_per_rank, gpus=job.gpus_per_node
        ),
        volume_mounts=[
            VolumeMount(name="volume", mount_path=options.volume_path),
            # MPI and NCCL exchange through it, and containers get 64 MB of it.
            VolumeMount(name="shared-memory", mount_path="/dev/shm"),
        ],
    )
    memory = Volume(name="shared-memory", empty_dir=EmptyDirectory(medium="Memory"))
    selector = options.node_selector or None
    return PodSpec(
        containers=[container], volumes=[_volume(job), memory], node_selector=selector, security_context=_security(job)
    )


def script(job: Job) -> str:
    """Return what the launcher's shell does."""
    assert job.site.project_folder
    there = for_remote(job, project_folder=job.site.project_folder)
    lines = ["set -eu", *site_lines(job), *prologue(there)]
    if job.preflight:
        lines.append(line(preflight_words(there, hosts=HOST_FILE)))
    if job.experiment:
        lines.append(line(experiment_words(there, hosts=HOST_FILE)))
    else:
        for repeat in range(1, job.repeats + 1):
            seed = str(job.seed + repeat - 1) if job.repeats > 1 else None
            words = [*_start_words(there), *trainer_words(there, name=job.run_name(repeat), seed=seed)]
            lines += [RECORD_START, line(words)]
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


def _files_pod(job: Job, *, name: str) -> Pod:
    options = job.site.kubernetes
    container = Container(
        name="files",
        image=options.image,
        command=["sleep", str(FILES_SECONDS)],
        resources=_resources(cpus=1, memory_gb=1),
        volume_mounts=[VolumeMount(name="volume", mount_path=options.volume_path)],
    )
    return Pod(
        metadata=Metadata(name=_files_pod_name(name), namespace=options.namespace),
        spec=PodSpec(
            containers=[container], volumes=[_volume(job)], restart_policy="Never", security_context=_security(job)
        ),
    )


def _files_pod_name(name: str) -> str:
    return f"{name}-files"


def _claim(job: Job) -> PersistentVolumeClaim:
    """Return the claim of a volume that the pods of all nodes write to."""
    options = job.site.kubernetes
    return PersistentVolumeClaim(
        metadata=Metadata(name=options.volume_claim, namespace=options.namespace),
        spec=PersistentVolumeClaimSpec(
            access_modes=["ReadWriteMany"],
            storage_class_name=options.storage_class,
            resources=Resources(requests={"storage": f"{options.volume_gb}G"}),
        ),
    )


def _volume(job: Job) -> Volume:
    return Volume(name="volume", persistent_volume_claim=ClaimSource(claim_name=job.site.kubernetes.volume_claim))


def _security(job: Job) -> PodSecurityContext | None:
    group = job.site.kubernetes.group_id
    return None if group is None else PodSecurityContext(fs_group=group)


def _resources(*, cpus: int, memory_gb: float, gpus: int = 0) -> Resources:
    """Return what a container gets, all of it for itself: requests equal to limits."""
    table = {"cpu": str(cpus), "memory": f"{memory_gb * 1000:.0f}M"}
    if gpus:
        table["nvidia.com/gpu"] = str(gpus)
    return Resources(requests=table, limits=table)


def submit(job: Job, folder: Path) -> str:
    """Make the volume's claim where there is none, then the MPIJob; its id is its name.

    It is made by `create`, not `apply`: that would change a job of the same name that is there.
    """
    options = job.site.kubernetes
    kubectl = _kubectl(options.namespace)
    claim = ["get", "persistentvolumeclaim", options.volume_claim, "--ignore-not-found", "--output", "name"]
    if not run_program([*kubectl, *claim], remedy=_LOOK).strip():
        run_program([*kubectl, "create", "--filename", str((folder / VOLUME_FILE).resolve())], remedy=_LOOK)
    run_program([*kubectl, "create", "--filename", str((folder / JOB_FILE).resolve())], remedy=_LOOK)
    return _name(job.name, workers=job.nodes)


_LOOK = "See `kubectl cluster-info` and `kubectl get crd mpijobs.kubeflow.org`"


def state(record: JobRecord, folder: Path) -> JobStatus:
    """Return the status of the job: the last of its conditions that is true."""
    words = ["get", "mpijob", record.id, "--ignore-not-found", "--output", "json"]
    text = run_program([*_kubectl_of(record), *words], remedy=_LOOK)
    if not text.strip():
        return JobStatus("unknown", "the cluster no longer knows it")
    conditions = parse_json(text, source="kubectl").get("status", {}).get("conditions", [])
    holding = {one["type"]: one for one in conditions if one.get("status") == "True"}
    for kind, standing in _STATES.items():
        if kind in holding:
            reason = holding[kind].get("message", "") if standing in ("failed", "queued") else ""
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
