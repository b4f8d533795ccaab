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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.config import EnergyConfig
from common.distributed.communicator import Communicator
from common.distributed.pinning import visible_gpus
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
        number = None if self._device == "cpu" else int(self._device.rpartition(":")[2])
        trace: PowerTrace | None = None
        gpus: list[tuple[str, str, str]] = []
        if self._reader:
            trace, gpus = self._reader.stop(), _gpus_of_host(self._sources)
        of_ranks = self._comm.allgather((platform.node(), number, os.environ.get("CUDA_VISIBLE_DEVICES"), trace, gpus))
        traces = [trace for _, _, _, trace, _ in of_ranks if trace is not None]
        gpus_of = {host: gpus for host, _, _, trace, gpus in of_ranks if trace is not None}
        used: dict[str, set[str]] = defaultdict(set)
        for host, number, variable, _, _ in of_ranks:
            if number is not None:
                used[host].add(used_gpu(number, variable, gpus_of[host]))
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


def _gpus_of_host(sources: Sources) -> list[tuple[str, str, str]]:
    """Return index, UUID and name of the host's GPUs; those that cannot be read have no UUID."""
    uuids = {device.name: device.uuid or "" for device in sources.devices} | dict.fromkeys(sources.not_measured, "")
    return [
        (name.removeprefix("gpu"), uuid, name)
        for name, uuid in uuids.items()
        if name.startswith("gpu") and name != "gpu"  # "gpu": none could be listed
    ]


def used_gpu(number: int, variable: str | None, gpus: Sequence[tuple[str, str, str]]) -> str:
    """Return the name, numbered over the host as NVML does, of the GPU that a process sees under a number.

    Args:
        number: among the GPUs that the process sees.
        variable: value of CUDA_VISIBLE_DEVICES in its environment; None: not set.
        gpus: index, UUID and name of the host's GPUs; empty where they could not be listed.
    """
    visible = visible_gpus(gpus, variable)
    return visible[number] if number < len(visible) else f"gpu{number}"
