"""The parts of a training step and their times, defined in the same way for both frameworks.

Each part starts at the end of the previous one and ends when the device has finished its work. The parts therefore add
up to the step without overlap, and a profiled run is slower than a timed one.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from common.json_records import Record

Part = Literal["input", "forward", "backward", "waiting", "allreduce", "optimizer", "rest"]
# input: waiting for the batch; waiting: a barrier, for stragglers; rest: sums of losses, progress, the loop itself.
PARTS: tuple[Part, ...] = ("input", "forward", "backward", "waiting", "allreduce", "optimizer", "rest")
LEFT_OUT_STEPS = 5  # after each start: they allocate memory and build graphs

Batch = TypeVar("Batch")


@dataclass(frozen=True, kw_only=True)
class LayerSeconds(Record):
    """Seconds of a layer per step, means over ranks."""

    forward: float
    backward: float


@dataclass(frozen=True, kw_only=True)
class StepProfile(Record):
    """Seconds per step, means over the measured steps; for a resumed run since its last start.

    Attributes:
        left_out_steps: not measured, because they allocate memory and build graphs.
        step_seconds: mean over ranks, measured around the loop over the same steps.
        parts_seconds: part -> mean over ranks.
        parts_over_step: sum of the parts / step_seconds.
        step_seconds_of_ranks: in the order of ranks.
        parts_seconds_of_ranks: part -> in the order of ranks.
        layers: layer -> its share of the parts `forward` and `backward`, in the order of the model, then "loss"; None
            without `--profile-layers`.
    """

    steps: int
    left_out_steps: int
    step_seconds: float
    parts_seconds: dict[Part, float]
    parts_over_step: float
    step_seconds_of_ranks: list[float]
    parts_seconds_of_ranks: dict[Part, list[float]]
    layers: dict[str, LayerSeconds] | None = None


@dataclass
class Laps:
    """The measurements of one rank: sums over its steps."""

    steps: int
    loop_seconds: float
    parts_seconds: dict[Part, float]
    layers: dict[str, dict[Part, float]] = field(default_factory=dict)


class Profiler:
    """Times the parts of the steps of one rank; `laps` holds the sums so far.

    Args:
        synchronize: waits until the device has done all its work.
    """

    def __init__(self, *, synchronize: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self._synchronize = synchronize
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Discard all measurements, and leave out the next steps."""
        self._left_out = 0
        self._last = 0.0
        self.laps = Laps(0, 0.0, dict.fromkeys(PARTS, 0.0))

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Forget what the block measures."""
        left_out, laps = self._left_out, self.laps
        self.restart()
        yield
        self._left_out, self.laps = left_out, laps

    def steps(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch; a step lasts from the request of its batch to that of the next one."""
        started: float | None = None
        self._last = self._clock()
        while True:
            if started is None and self._left_out == LEFT_OUT_STEPS:
                started = self._clock()
            try:
                batch = next(batches)
            except StopIteration:
                break
            self.lap("input")
            yield batch
            self.lap("rest")
            if started is None:
                self._left_out += 1
            else:
                self.laps.steps += 1
        if started is not None:
            self.laps.loop_seconds += self._clock() - started

    def lap(self, part: Part, *, layer: str = "") -> None:
        """End a part of the step; the next one starts.

        Args:
            layer: whose pass it is; "": no single one's.
        """
        self._synchronize()
        self._end(part, layer, self._clock())

    def recorded_laps(self, ends: Iterable[tuple[Part, str, float]]) -> None:
        """End parts of the step as `lap`, at times (seconds since 1970) that a compiled function recorded.

        Args:
            ends: part, layer, time; in order.
        """
        # Both clocks are read only once: if the process is interrupted between the two readings, all ends move alike,
        # and no layer loses time.
        to_clock = self._clock() - time.time()
        for part, layer, ended_at in ends:
            self._end(part, layer, ended_at + to_clock)

    def _end(self, part: Part, layer: str, now: float) -> None:
        if self._left_out == LEFT_OUT_STEPS:
            self.laps.parts_seconds[part] += now - self._last
            if layer:
                of_layer = self.laps.layers.setdefault(layer, {"forward": 0.0, "backward": 0.0})
                of_layer[part] += now - self._last
        self._last = now


def average_over_ranks(laps: Sequence[Laps]) -> StepProfile | None:
    """Return the profile of a run from those of its ranks, in their order; None if no step was measured.

    All ranks run the same steps. A run that is resumed for only a few steps measures none.
    """
    steps = laps[0].steps
    if steps == 0:
        return None
    step_of_ranks = [rank.loop_seconds / steps for rank in laps]
    parts_of_ranks = {part: [rank.parts_seconds[part] / steps for rank in laps] for part in PARTS}
    step_seconds = sum(step_of_ranks) / len(laps)
    layers = {
        layer: LayerSeconds(
            forward=sum(rank.layers[layer]["forward"] for rank in laps) / steps / len(laps),
            backward=sum(rank.layers[layer]["backward"] for rank in laps) / steps / len(laps),
        )
        for layer in laps[0].layers
    }
    parts_seconds = {part: sum(seconds) / len(laps) for part, seconds in parts_of_ranks.items()}
    return StepProfile(
        steps=steps,
        left_out_steps=LEFT_OUT_STEPS,
        step_seconds=step_seconds,
        parts_seconds=parts_seconds,
        parts_over_step=sum(parts_seconds.values()) / step_seconds,
        step_seconds_of_ranks=step_of_ranks,
        parts_seconds_of_ranks=parts_of_ranks,
        layers=layers or None,
    )


def profile_table(profile: StepProfile) -> str:
    """Return one line per part of the step."""
    rows = [
        f"  {part:10} {1000 * seconds:9.3f} ms  {100 * seconds / profile.step_seconds:5.1f} %"
        for part, seconds in profile.parts_seconds.items()
    ]
    rows += [
        f"    {layer}: forward {1000 * seconds.forward:.3f} ms, backward {1000 * seconds.backward:.3f} ms"
        for layer, seconds in (profile.layers or {}).items()
    ]
    head = f"a step of {profile.steps}, mean over ranks (the first {profile.left_out_steps} are left out):"
    return "\n".join([head, *rows, f"  {'step':10} {1000 * profile.step_seconds:9.3f} ms"])
