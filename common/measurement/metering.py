"""The energy of a run: one reader per host; at the end every rank has the traces of all hosts.

    meter = Meter(config.energy, comm=comm, device="cuda:0", phases=phases)     # before the model is built
    ...                                                                            # training, validation, test
    measured = meter.finish()                                                      # traces and record

Every rank creates a `Meter` and calls `finish`; the first rank of each host reads the power.
"""

import os
import platform
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from common.config import EnergyConfig
from common.distributed.communicator import Communicator
from common.distributed.pinning import gpu_identity, gpu_uuids, visible_gpus
from common.errors import UserError, expanded
from common.measurement.energy import EnergyRecord, energy_record
from common.measurement.power import PowerReader
from common.measurement.power_sources import Sources, find_sources
from common.measurement.power_trace import IDLE_AFTER, IDLE_BEFORE, PowerTrace
from common.measurement.timing import Phases


@dataclass(frozen=True)
class Metered:
    """The traces of all hosts, in the order of ranks, and the energy record."""

    traces: list[PowerTrace]
    record: EnergyRecord


class Meter:
    """Reads power from before the model is built until after the test."""

    def __init__(self, config: EnergyConfig, *, comm: Communicator, device: str, phases: Phases) -> None:
        """Measure idle power, then mark every phase in the trace.

        Args:
            config: sampling interval and idle time.
            device: of this rank in its framework's notation, "cpu" or such as "cuda:0".

        Raises:
            UserError: a host has servers alone, or a rank a GPU that the first rank of its host does not see: their
                energy would be missing; on all ranks.
        """
        if alone := sorted({*comm.server_hosts} - {*comm.allgather(platform.node())}):
            raise UserError(
                "energy is measured on hosts that have workers. Received: --energy, and servers alone on "
                f"{', '.join(alone)}. Place servers beside workers, or leave --energy out"
            )
        self._config, self._comm, self._device = config, comm, device
        self._reader: PowerReader | None = None
        if comm.local_rank == 0:
            self._sources = find_sources(powercap=expanded(config.powercap_folder))
        self._check_gpus()
        if comm.local_rank == 0:
            self._reader = PowerReader(self._sources, host=platform.node(), interval_seconds=config.power_interval)
            self._reader.start()
        self._idle(IDLE_BEFORE)
        if self._reader:
            phases.listeners.append(self._reader.mark)

    @property
    def _gpu(self) -> int | None:
        """The number of this rank's GPU among those that it sees; None: the CPU."""
        return None if self._device == "cpu" else int(self._device.rpartition(":")[2])

    def _check_gpus(self) -> None:
        own: str | None = None
        if self._gpu is not None and (uuids := gpu_uuids()):
            own = gpu_identity(self._gpu, os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
        read = [uuid for _, uuid, _ in _gpus_of_host(self._sources)] if self._comm.local_rank == 0 else []
        if hidden := hidden_gpus(self._comm.allgather((platform.node(), own, read))):
            raise UserError(
                "the first rank of a host reads the power of all its GPUs. Received: --energy, and GPUs that it does "
                f"not see, of ranks {', '.join(map(str, hidden))}. Show each rank all GPUs of its host (with srun, no "
                "--gpus-per-task), or leave --energy out"
            )

    def finish(self) -> Metered:
        """Measure idle power again, stop, and return the measurements of all hosts."""
        self._idle(IDLE_AFTER)
        trace: PowerTrace | None = None
        gpus: list[tuple[str, str, str]] = []
        if self._reader:
            trace, gpus = self._reader.stop(), _gpus_of_host(self._sources)
        of_ranks = self._comm.allgather(
            (platform.node(), self._gpu, os.environ.get("CUDA_VISIBLE_DEVICES"), trace, gpus)
        )
        traces = [trace for _, _, _, trace, _ in of_ranks if trace is not None]
        gpus_of = {host: gpus for host, _, _, trace, gpus in of_ranks if trace is not None}
        used: dict[str, set[str]] = defaultdict(set)
        for host, number, variable, _, _ in of_ranks:
            if number is not None:
                used[host].add(used_gpu(number, variable, gpus_of[host]))
        return Metered(traces, energy_record(traces, used_gpus=used, interval_seconds=self._config.power_interval))

    def _idle(self, phase: str) -> None:
        """Let all ranks sleep: one that waited in a collective would keep a core busy."""
        self._comm.allgather(None)  # all ranks are done
        if self._config.idle_seconds:
            if self._reader:
                self._reader.measure_idle(phase, self._config.idle_seconds)
            else:
                time.sleep(self._config.idle_seconds)
        self._comm.allgather(None)


def hidden_gpus(of_ranks: Sequence[tuple[str, str | None, Sequence[str]]]) -> list[int]:
    """Return the ranks whose GPU the reader of their host does not see.

    Args:
        of_ranks: host, UUID of the GPU (None: none, or unknown), and UUIDs of the GPUs that are read, if any.
    """
    seen: dict[str, set[str]] = defaultdict(set)
    for host, _, read in of_ranks:
        seen[host].update(filter(None, read))
    return [rank for rank, (host, own, _) in enumerate(of_ranks) if own and seen[host] and own not in seen[host]]


def _gpus_of_host(sources: Sources) -> list[tuple[str, str, str]]:
    """Return index, UUID and name of the host's GPUs; the UUID is empty if it cannot be read."""
    uuids = {device.name: device.uuid or "" for device in sources.devices} | dict.fromkeys(sources.not_measured, "")
    return [
        (name.removeprefix("gpu"), uuid, name)
        for name, uuid in uuids.items()
        if name.startswith("gpu") and name != "gpu"  # "gpu": they could not be listed
    ]


def used_gpu(number: int, variable: str | None, gpus: Sequence[tuple[str, str, str]]) -> str:
    """Return the name of a process's GPU in NVML's numbering of the host.

    Args:
        number: of the GPU in the process's numbering.
        variable: value of CUDA_VISIBLE_DEVICES in its environment; None: not set.
        gpus: index, UUID and name of the host's GPUs; empty if they could not be listed.
    """
    visible = visible_gpus(gpus, variable)
    return visible[number] if number < len(visible) else f"gpu{number}"
