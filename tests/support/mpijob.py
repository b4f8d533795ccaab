"""What a rendered Kubernetes file may hold: the part of the MPIJob (kubeflow.org/v2beta1) that the project uses.

Names and rules are those of the operator, github.com/kubeflow/mpi-operator v0.8.0 (February 2026): `MPIJobSpec`,
`RunPolicy` and `ReplicaSpec` in pkg/apis/kubeflow/v2beta1/types.go, and the checks on them in
pkg/apis/kubeflow/validation/validation.go. Pods and claims are Kubernetes' own, from core/v1/types.go of the
k8s.io/api v0.35.1 that this release is built with; names and values are as its pkg/apis/core/validation takes them.
A field that is not here is refused.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel, to_pascal

LABEL_LENGTH = 63  # of names that become host names, and of labels
# As IsDNS1035Label, IsDNS1123Label, IsDNS1123Subdomain and IsValidLabelValue of k8s.io/apimachinery.
_HOST_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
Label = Annotated[str, StringConstraints(pattern=rf"^{_PART}$", max_length=LABEL_LENGTH)]
Subdomain = Annotated[str, StringConstraints(pattern=rf"^{_PART}(\.{_PART})*$", max_length=253)]
_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
LabelValue = Annotated[str, StringConstraints(pattern=_VALUE, max_length=LABEL_LENGTH)]
# Narrower than Kubernetes: what a shell can name, the quantities that are used here, no control characters.
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|M|G|T|Mi|Gi|Ti)?$")]
MountPath = Annotated[str, StringConstraints(pattern=r"^(/[^/:\x00-\x1f]+)+$")]
Image = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$")]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]


class Part(BaseModel):
    """A part of a file: written with the names of the API, read strictly and without unknown fields."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )


class Metadata(Part):
    """metav1.ObjectMeta."""

    name: Subdomain
    namespace: Label
    labels: dict[str, LabelValue] | None = None


class Variable(Part):
    """corev1.EnvVar with its value written out."""

    name: VariableName
    value: Text


class Resources(Part):
    """corev1.ResourceRequirements, and of a claim corev1.VolumeResourceRequirements."""

    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class VolumeMount(Part):
    """corev1.VolumeMount."""

    name: Label
    mount_path: MountPath


class Container(Part):
    """corev1.Container."""

    name: Label
    image: Image
    command: list[Text] | None = None
    working_dir: MountPath | None = None
    env: list[Variable] | None = None
    resources: Resources | None = None
    volume_mounts: list[VolumeMount] | None = None


class ClaimSource(Part):
    """corev1.PersistentVolumeClaimVolumeSource."""

    claim_name: Subdomain


class EmptyDirectory(Part):
    """corev1.EmptyDirVolumeSource."""

    medium: Literal["Memory"]


class Volume(Part):
    """corev1.Volume: a claim or memory."""

    name: Label
    persistent_volume_claim: ClaimSource | None = None
    empty_dir: EmptyDirectory | None = None


class PodSecurityContext(Part):
    """corev1.PodSecurityContext."""

    fs_group: Count


class Toleration(Part):
    """corev1.Toleration."""

    key: Text | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class LocalObjectReference(Part):
    """corev1.LocalObjectReference."""

    name: Subdomain


class PodSpec(Part):
    """corev1.PodSpec."""

    containers: Annotated[list[Container], Field(min_length=1)]
    volumes: list[Volume] | None = None
    node_selector: dict[str, LabelValue] | None = None
    tolerations: list[Toleration] | None = None
    image_pull_secrets: list[LocalObjectReference] | None = None
    service_account_name: Subdomain | None = None
    restart_policy: Literal["Never"] | None = None
    security_context: PodSecurityContext | None = None


class PodTemplate(Part):
    """corev1.PodTemplateSpec."""

    spec: PodSpec


class ReplicaSpec(Part):
    """ReplicaSpec; validation.go takes these two restart policies."""

    replicas: Positive
    restart_policy: Literal["Never", "OnFailure"]
    template: PodTemplate


class ReplicaSpecs(Part):
    """MPIReplicaSpecs: a map of MPIReplicaType to ReplicaSpec; validation.go wants one launcher."""

    model_config = ConfigDict(alias_generator=to_pascal)

    launcher: ReplicaSpec
    worker: ReplicaSpec

    @model_validator(mode="after")
    def _one_launcher(self) -> Self:
        if self.launcher.replicas != 1:
            raise ValueError("there is one launcher")
        return self


class RunPolicy(Part):
    """RunPolicy."""

    clean_pod_policy: Literal["None", "Running", "All"]
    active_deadline_seconds: Positive
    backoff_limit: Count


class MPIJobSpec(Part):
    """MPIJobSpec."""

    slots_per_worker: Positive
    run_policy: RunPolicy
    ssh_auth_mount_path: MountPath
    launcher_creation_policy: Literal["AtStartup", "WaitForWorkersReady"]
    mpi_implementation: Literal["OpenMPI", "Intel", "MPICH"]
    mpi_replica_specs: ReplicaSpecs


class MPIJob(Part):
    """MPIJob; validation.go wants the host name of its last worker to be a label of DNS."""

    api_version: Literal["kubeflow.org/v2beta1"] = "kubeflow.org/v2beta1"
    kind: Literal["MPIJob"] = "MPIJob"
    metadata: Metadata
    spec: MPIJobSpec

    @model_validator(mode="after")
    def _host_name(self) -> Self:
        last = f"{self.metadata.name}-worker-{self.spec.mpi_replica_specs.worker.replicas - 1}"  # as `workerName`
        if len(last) > LABEL_LENGTH or not _HOST_NAME.fullmatch(last):
            raise ValueError(f"{last} is not a valid DNS label")
        return self


class Pod(Part):
    """corev1.Pod."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["Pod"] = "Pod"
    metadata: Metadata
    spec: PodSpec


class PersistentVolumeClaimSpec(Part):
    """corev1.PersistentVolumeClaimSpec."""

    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany"]]
    resources: Resources
    storage_class_name: Subdomain | None = None


class PersistentVolumeClaim(Part):
    """corev1.PersistentVolumeClaim."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["PersistentVolumeClaim"] = "PersistentVolumeClaim"
    metadata: Metadata
    spec: PersistentVolumeClaimSpec
