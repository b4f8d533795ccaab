"""How ranks are started, as the environment variables of a rank tell it before it joins the others."""

import os
import sys
from collections.abc import Mapping

from common.config import StrategyConfig
from common.errors import EXIT_CODE_USER_ERROR, UserError

LAUNCHER_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "HOROVOD_RANK")
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "HOROVOD_RANK")
LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "HOROVOD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


def under_launcher(variables: Mapping[str, str]) -> bool:
    """Return whether a process with these environment variables was started by horovodrun, mpirun or srun."""
    return any(name in variables for name in LAUNCHER_VARIABLES)


def launcher_rank(variables: Mapping[str, str]) -> int:
    """Return the rank of a process with these environment variables, before it has joined the others."""
    return next((int(variables[name]) for name in _RANK_VARIABLES if name in variables), 0)


def launcher_local_rank(variables: Mapping[str, str]) -> int:
    """Return the rank on its host of a process with these environment variables, before it has joined the others."""
    return next((int(text) for name in LOCAL_RANK_VARIABLES if (text := variables.get(name, "")).isdecimal()), 0)


def launcher_of(variables: Mapping[str, str]) -> str:
    """Return what started a process with these environment variables: horovodrun, mpirun, srun or none.

    srun is recognized by `--mpi=pmix` or `pmi2`: without them each of its ranks runs alone.
    """
    # The second is a patch of ours, see launch/horovod/.
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in variables or variables.get("HOROVOD_STARTED_BY") == "horovodrun":
        return "horovodrun"
    if "OMPI_COMM_WORLD_SIZE" in variables:  # also if Slurm's steps start Open MPI's daemons
        return "mpirun"
    if "SLURM_STEP_ID" in variables and ("PMIX_RANK" in variables or "PMI_RANK" in variables):
        return "srun"
    return "mpirun" if under_launcher(variables) else "none"


# MPI spins while it waits, which on a CPU takes cores from ranks that still compute.
YIELDING = {"OMPI_MCA_mpi_yield_when_idle": "1"}
# For gradients in host memory. Horovod's defaults, 1 ms and 128 MB, suit GPUs: with 2 ranks on one host these values
# reduced the all-reduce of 87 kB from 1.1 to 0.4 ms, and of 85 MB (20 tensors) from 60 to 15 ms. Buffers of a few MB
# stay in the processor's cache, and larger tensors are not copied into a fusion buffer.
CPU_EXCHANGE = {
    "HOROVOD_CYCLE_TIME": "0.2",  # milliseconds
    "HOROVOD_FUSION_THRESHOLD": str(4 * 2**20),  # bytes
}
# Horovod's thread sleeps as long as it holds no tensor, at most so many milliseconds (a patch, see
# launch/horovod/). Looking every 0.2 ms it took time from the training beside it, and a tensor
# waited for its next look.
WAKING = {"HOROVOD_TWINS_IDLE_MS": "20"}
# Where several ranks hold one copy of the model, a process set waits in each of its exchanges for all other ranks.
LOOKING = {"HOROVOD_TWINS_IDLE_MS": "0"}
# Gloo gives up an exchange after 30 s: before a watcher can say which rank is stopped, and each says that another has
# ended. A rank that ends is noticed at once, whatever the limit is. Elastic ranks have a limit of their own.
PATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "3600"}
# Started by srun on several nodes, Open MPI 4.1 now and then died in MPI_Init: a rank that was ready sent its first
# message to one that still waited for the addresses of all and could not receive yet. With these it does not wait there
# but asks for each address when it is needed.
SRUN = {"OMPI_MCA_pmix_base_async_modex": "1", "OMPI_MCA_pmix_base_collect_data": "0"}
# With this variable, set before CUDA starts, CUDA numbers GPUs like nvidia-smi and NVML.
GPU_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def controller_variables(variables: Mapping[str, str], *, nccl: bool, parts: int = 1) -> dict[str, str]:
    """Return the variables to add before Horovod and CUDA start, which is when MPI, Horovod and CUDA read them.

    Args:
        variables: the environment, whose values are kept.
        nccl: whether gradients go from GPU to GPU, by NCCL.
        parts: ranks that hold one copy of the model.
    """
    chosen = YIELDING | GPU_ORDER
    if not nccl:
        chosen = chosen | WAKING
        # Gloo sleeps while it waits: short cycles slow it down, and the size of buffers does not matter.
        if variables.get("HOROVOD_CONTROLLER") != "gloo":
            chosen = chosen | CPU_EXCHANGE
    if parts > 1:
        chosen = chosen | LOOKING
    if variables.get("HOROVOD_CONTROLLER") == "gloo" and "HOROVOD_ELASTIC" not in variables:
        chosen = chosen | PATIENT
    if launcher_of(variables) == "srun":
        chosen = chosen | SRUN
    return {name: value for name, value in chosen.items() if name not in variables}


# The names that this host has for Horovod in an elastic run, one for each rank that it can take: Horovod gives up a
# host as a whole when one of its ranks ends.
HOST_ALIASES = "HOROVOD_TWINS_HOST_ALIASES"


def place_on_host(variables: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the place of this rank among those of its host and their number; None: Horovod knows them."""
    aliases, own = variables.get(HOST_ALIASES, "").split(","), variables.get("HOROVOD_HOSTNAME")
    return (aliases.index(own), len(aliases)) if own and own in aliases else None


# The number of runs that a launcher makes side by side, this one included: only where it is equal do times compare.
AT_ONCE = "HOROVOD_TWINS_AT_ONCE"


def runs_at_once(variables: Mapping[str, str] = os.environ) -> int:
    """Return the number of runs that are made side by side with this one, itself included; 1: it has the host alone."""
    text = variables.get(AT_ONCE, "")
    return max(1, int(text)) if text.isdecimal() else 1


def uses_gloo(variables: Mapping[str, str]) -> bool:
    """Return whether Horovod will start Gloo in a process with these environment variables."""
    return any(variables.get(name, "").lower() == "gloo" for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"))


def check_operations(variables: Mapping[str, str]) -> None:
    """Raise UserError unless tensors go the way of the ranks' messages: Horovod 0.28.1 has no other."""
    ways = [variables.get(name, "mpi").lower() for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")]
    if ways[0] != ways[1]:
        raise UserError(
            f"HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS differ. Received: {ways[0]} and {ways[1]}. Start the ranks "
            "with `horovodrun --gloo`, which sets both, or set neither"
        )


def check_controller(config: StrategyConfig, variables: Mapping[str, str]) -> None:
    """Raise UserError if a strategy needs MPI and the launcher uses Gloo."""
    if not config.needs_mpi or not under_launcher(variables):
        return
    if variables.get("HOROVOD_CONTROLLER") == "gloo" or "HOROVOD_GLOO_RENDEZVOUS_ADDR" in variables:
        raise UserError(
            f"{config.traits.chosen_by} exchanges messages over MPI. Received: ranks started with Gloo. "
            "Start them with horovodrun --mpi, mpirun or srun"
        )


def check_tasks(variables: Mapping[str, str]) -> None:
    """Raise UserError in the first of several tasks of srun that know nothing of each other; end the others."""
    tasks = variables.get("SLURM_STEP_NUM_TASKS", "1")
    if under_launcher(variables) or tasks == "1":
        return
    if variables.get("SLURM_PROCID", "0") != "0":
        sys.exit(EXIT_CODE_USER_ERROR)  # one line is enough
    raise UserError(
        f"each of these tasks would be a separate run. Received: {tasks} tasks of srun without PMI. Give srun "
        "--mpi=pmix (`srun --mpi=list` lists the choices), or start the ranks with `python -m launch submit`"
    )
