"""Measure power during a run: one reader per host, independent of the number of ranks.

    reader = PowerReader(find_sources(), host=socket.gethostname(), interval_seconds=0.5)
    reader.start()                              # before the framework takes a GPU, which would not be idle then
    reader.measure_idle(IDLE_BEFORE, 5)
    reader.mark("training")                     # at each edge of a phase, with the device synchronized
    ...
    reader.measure_idle(IDLE_AFTER, 5)
    trace = reader.stop()                       # a PowerTrace; `energy.py` takes those of several hosts together

A thread takes a sample every interval, `mark` one more at the edge, so that each joule falls into one phase. Counters
of GPUs may be up to .1 s behind: phases shorter than that are not resolved. The integral takes each reading of power
for the time since the sample before (the right-hand rule), as NVML's power of newer GPUs is the mean of the second
before; with even samples that is the thesis's sum, interval x sum of power samples.
"""

import threading
import time
from collections.abc import Callable

import numpy as np

from common.measurement.power_sources import Device, ReadingError, Sources
from common.measurement.power_trace import PowerTrace, Series

STARTUP = "startup"


class PowerReader:
    """Samples all devices of this host in memory. Every method may be called from one thread of the caller."""

    def __init__(
        self,
        sources: Sources,
        *,
        host: str,
        interval_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Make a reader; it reads nothing before `start`.

        Args:
            sources: what to read; `stop` closes it.
            host: name of this machine, as the trace will hold it.
            interval_seconds: from one sample to the next.
            clock: seconds that never go back.
            sleep: waits for seconds; for tests, as is `clock`.
        """
        self._sources = sources
        self._host = host
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._sleep = sleep
        self._phase = STARTUP
        self._phases: list[str] = []
        self._moments: list[float] = []
        self._readings: dict[str, list[float]] = {device.name: [] for device in sources.devices}
        self._failed: dict[str, str] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="power", daemon=True)

    def start(self) -> None:
        """Take the first sample and start the thread. The phase is start-up until the first mark."""
        self.sample()
        self._thread.start()

    def mark(self, phase: str) -> None:
        """End the phase so far with a sample and begin another; waits for no more than two samples' reading."""
        with self._lock:
            self._take()
            self._phase = phase

    def measure_idle(self, phase: str, seconds: float) -> None:
        """Measure idle power as a separate phase; the previous phase continues afterwards.

        Args:
            phase: IDLE_BEFORE or IDLE_AFTER.
            seconds: how long.
        """
        interrupted = self._phase
        self.mark(phase)
        self._sleep(seconds)
        self.mark(interrupted)

    def stop(self) -> PowerTrace:
        """Take the last sample, end the thread and the sources, and return all samples."""
        self._ended.set()
        self._thread.join()
        self.sample()
        self._sources.close()
        return self._trace()

    def sample(self) -> None:
        """Read all devices now."""
        with self._lock:
            self._take()

    def _sample(self) -> None:
        start, number = self._moments[0], 0
        while True:
            elapsed = self._clock() - start
            number = next_sample(number, elapsed_seconds=elapsed, interval_seconds=self._interval_seconds)
            if self._ended.wait(number * self._interval_seconds - elapsed):
                return
            self.sample()

    def _take(self) -> None:
        self._moments.append(self._clock())
        self._phases.append(self._phase)
        for device in self._sources.devices:
            if device.name not in self._failed:
                try:
                    self._readings[device.name].append(device.read())
                except ReadingError as error:
                    after = self._moments[-1] - self._moments[0]
                    self._failed[device.name] = f"failed {after:.1f} s after the first sample: {error}"

    def _trace(self) -> PowerTrace:
        seconds = np.array(self._moments) - self._moments[0]
        measured = [device for device in self._sources.devices if device.name not in self._failed]
        series = {device.name: self._series(device, seconds) for device in measured}
        still = {
            name: "read 0 J from the first sample to the last: it does not count here"
            for name, one in series.items()
            if not one.joules.any()
        }
        return PowerTrace(
            host=self._host,
            seconds=seconds,
            phases=self._phases,
            series={name: one for name, one in series.items() if name not in still},
            not_measured=self._sources.not_measured | self._failed | still,
        )

    def _series(self, device: Device, seconds: np.ndarray) -> Series:
        """Return watts and joules of a device that never failed."""
        readings, steps = np.array(self._readings[device.name]), np.diff(seconds, prepend=0.0)
        if device.method == "integral":
            return Series(method=device.method, watts=readings, joules=readings * steps)
        joules = np.diff(readings, prepend=readings[0])
        # Counters are renewed in steps, some only every .1 s: over a shorter time their mean is no power.
        watts = np.full(len(steps), np.nan)
        np.divide(joules, steps, out=watts, where=steps >= self._interval_seconds / 2)
        return Series(method=device.method, watts=watts, joules=joules)


def next_sample(last: int, *, elapsed_seconds: float, interval_seconds: float) -> int:
    """Return the number of the sample to wait for, which is due at number x interval: late ones shift no others.

    One whose time passed during a late sample is left out; the late sample's joules hold its energy.
    """
    return max(last, int(elapsed_seconds / interval_seconds)) + 1
