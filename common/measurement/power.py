"""Measure power during a run: one reader per host, independent of the number of ranks.

    reader = PowerReader(find_sources(), host=socket.gethostname(), interval_seconds=0.5)
    reader.start()                              # before the framework uses a GPU, which is not idle afterwards
    reader.measure_idle(IDLE_BEFORE, 5)
    reader.mark("training")                     # at the end of each phase, after synchronizing the device
    ...
    reader.measure_idle(IDLE_AFTER, 5)
    trace = reader.stop()                       # a PowerTrace; `energy.py` combines those of several hosts

A thread takes a sample every interval, and `mark` takes one more between phases, so that each joule belongs to one
phase. Counters of GPUs may lag by up to 0.1 s: shorter phases are not resolved. The integral uses each reading of power
for the time since the previous sample (the right-hand rule), because NVML's power of newer GPUs is the mean of the
previous second; with equally spaced samples that is the formula of the thesis, interval x sum of power samples.
"""

import threading
import time
from collections.abc import Callable

import numpy as np

from common.measurement.power_sources import Device, ReadingError, Sources
from common.measurement.power_trace import PowerTrace, Series

STARTUP = "startup"


class PowerReader:
    """Samples all devices of this host in memory. Call its methods from one thread."""

    def __init__(
        self,
        sources: Sources,
        *,
        host: str,
        interval_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create a reader; it reads nothing before `start`.

        Args:
            interval_seconds: from one sample to the next.
            clock: monotonic, in seconds.
        """
        self._sources = sources
        self._host = host
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._sleep = sleep
        self._phase = STARTUP
        self._phases: list[str] = []
        self._times: list[float] = []
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
        """End the current phase with a sample and start another; waits for at most two samples."""
        with self._lock:
            self._take()
            self._phase = phase

    def measure_idle(self, phase: str, seconds: float) -> None:
        """Measure idle power as a separate phase; the previous phase continues afterwards.

        Args:
            phase: IDLE_BEFORE or IDLE_AFTER.
        """
        interrupted = self._phase
        self.mark(phase)
        self._sleep(seconds)
        self.mark(interrupted)

    def stop(self) -> PowerTrace:
        """Take the last sample, end the thread, close the sources, and return the trace."""
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
        start, number = self._times[0], 0
        while True:
            elapsed = self._clock() - start
            number = next_sample(number, elapsed_seconds=elapsed, interval_seconds=self._interval_seconds)
            if self._ended.wait(number * self._interval_seconds - elapsed):
                return
            self.sample()

    def _take(self) -> None:
        self._times.append(self._clock())
        self._phases.append(self._phase)
        for device in self._sources.devices:
            if device.name not in self._failed:
                try:
                    self._readings[device.name].append(device.read())
                except ReadingError as error:
                    after = self._times[-1] - self._times[0]
                    self._failed[device.name] = f"failed {after:.1f} s after the first sample: {error}"

    def _trace(self) -> PowerTrace:
        seconds = np.array(self._times) - self._times[0]
        measured = [device for device in self._sources.devices if device.name not in self._failed]
        series = {device.name: self._series(device, seconds) for device in measured}
        still = {
            name: "read 0 J from the first sample to the last: the counter does not work here"
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
        # Counters are updated in steps, some every 0.1 s: the mean over a shorter time is not the power.
        watts = np.full(len(steps), np.nan)
        np.divide(joules, steps, out=watts, where=steps >= self._interval_seconds / 2)
        return Series(method=device.method, watts=watts, joules=joules)


def next_sample(last: int, *, elapsed_seconds: float, interval_seconds: float) -> int:
    """Return the number of the next sample, which is due at number x interval: a late sample does not shift others.

    Samples that were due during a late one are skipped; its joules include their energy.
    """
    return max(last, int(elapsed_seconds / interval_seconds)) + 1
