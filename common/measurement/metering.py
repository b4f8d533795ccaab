"""The energy of a run: one reader on each host around its phases, all traces together on every rank at the end.

    meter = Meter(config.energy, comm=comm, device="cuda:0", phases=phases)     # before the model is built
    ...                                                                            # training, validation, test
    measured = meter.finish()                                                      # traces and record

Every rank makes one and calls `finish`; the first rank of each host reads.
"""

import os
import platform
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.config import EnergyConfig
from common.distributed.communicator import Communicator
from common.measurement.energy import EnergyRecord, energy_record
from common.measurement.power import PowerReader
from common.measurement.power_sources import Sources, find_sources
from common.measurement.power_trace import IDLE_AFTER, IDLE_BEFORE, PowerTrace
from common.measurement.timing import Phases


@dataclass(frozen=True)
class Metered:
    """What was measured: a trace of each host, in the order of ranks, and what follows from them."""

    traces: list[PowerTrace]
    record: EnergyRecord


class Meter:
    """Reads power from before the model is built until after the test."""

    def __init__(self, config: EnergyConfig, *, comm: Communicator, device: str, phases: Phases) -> None:
        """Begin: measure power at rest, then mark every phase in the trace.

        Args:
            config: how often, and how long at rest.
            comm: all ranks of the run.
            device: of this rank, as its framework names it: "cpu", or with the GPU's number behind a colon.
            phases: of this rank.
        """
        self._config, self._comm, self._device = config, comm, device
        self._reader: PowerReader | None = None
        if comm.local_rank == 0:
            self._sources = find_sources(powercap=Path(config.powercap_folder))
            self._reader = PowerReader(self._sources, host=platform.node(), interval_seconds=config.power_interval)
            self._reader.start()
        self._rest(IDLE_BEFORE)
        if self._reader:
            phases.listeners.append(self._reader.mark)

    def finish(self) -> Metered:
        """Measure power at rest once more and end; return what all hosts measured."""
        self._rest(IDLE_AFTER)
        gpu = None
        if self._device != "cpu":
            gpu = visible_gpu(int(self._device.rpartition(":")[2]), os.environ)
        trace, names = None, {}
        if self._reader:
            trace, names = self._reader.stop(), _names_by_uuid(self._sources)
        told = self._comm.allgather((platform.node(), gpu, trace, names))
        traces = [trace for _, _, trace, _ in told if trace is not None]
        names_on = {host: names for host, _, trace, names in told if trace is not None}
        used: dict[str, set[str]] = defaultdict(set)
        for host, gpu, _, _ in told:
            if gpu is not None:
                used[host].add(names_on[host].get(gpu, gpu))
        return Metered(traces, energy_record(traces, used_gpus=used, interval_seconds=self._config.power_interval))

    def _rest(self, phase: str) -> None:
        """All ranks sleep meanwhile: one that waited for the others in a collective would keep a core busy."""
        self._comm.allgather(None)  # nobody is still at work
        if self._config.idle_seconds:
            if self._reader:
                self._reader.measure_idle(phase, self._config.idle_seconds)
            else:
                time.sleep(self._config.idle_seconds)
        self._comm.allgather(None)


def visible_gpu(number: int, variables: Mapping[str, str]) -> str:
    """Return the name, or the UUID, of the GPU that a process sees under a number.

    Args:
        number: among the GPUs that the process sees.
        variables: its environment, where CUDA_VISIBLE_DEVICES may name a part of the host's GPUs, in any order.

    Returns:
        "gpu3", numbered over the host as NVML does; "GPU-..." where the variable holds UUIDs.
    """
    visible = [entry.strip() for entry in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    if number >= len(visible):
        return f"gpu{number}"
    return f"gpu{visible[number]}" if visible[number].isdigit() else visible[number]


def _names_by_uuid(sources: Sources) -> dict[str, str]:
    return {device.uuid: device.name for device in sources.devices if device.uuid}
