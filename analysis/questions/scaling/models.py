"""Models of training time over ranks: fitted, judged on points that were held out, and extrapolated to more ranks.

Both are linear in unknowns that cannot be negative, so non-negative least squares finds them:

    Amdahl (1967)      T(p) = T1 (s + (1 - s) / p)                                            unknown: T1 s, T1 (1 - s)
    compute, exchange  T(p) = images c / p + updates (2 (p - 1) l + 2 (p - 1) / p bytes / b)  unknown: c, l, 1 / b

p ranks, s the serial share, c compute seconds of an image on one rank, l seconds of latency and b bytes per second of
the passes of a ring all-reduce (`analysis/projection/ring.py`). Updates: images / batch; the batch grows with p in weak
scaling and stays in strong.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.output.tables import in_figures
from analysis.projection.ring import Numbers, ring_passes, ring_share
from analysis.stats.inference import CONFIDENCE, Interval

FEWEST_SIZES = 3  # numbers of ranks: two to fit and one to hold out
LARGEST_ERROR = 0.2  # of the point that was held out: a model that misses it by more projects nothing
_RESAMPLES = 500


@dataclass(frozen=True, kw_only=True)
class Work:
    """What runs over ranks have in common.

    Attributes:
        images: trained in a run, by all ranks together.
        batch: images of an update, of all ranks together; of each rank if `weak`.
        weak: whether the batch per rank stays the same over ranks.
        gradient_bytes: of all gradients, as ranks send them.
    """

    images: float
    batch: int
    weak: bool
    gradient_bytes: float

    def updates(self, ranks: Numbers) -> Numbers:
        """Return the number of updates of a run on each number of ranks."""
        return self.images / (self.batch * ranks if self.weak else np.full_like(ranks, self.batch))


@dataclass(frozen=True, kw_only=True)
class Model:
    """Training seconds = columns @ unknowns, all of which are >= 0.

    Attributes:
        columns: work, (points,) ranks -> (points, unknowns) float64.
    """

    name: str
    unknowns: int
    columns: Callable[[Work, Numbers], Numbers]


def _amdahl_columns(work: Work, ranks: Numbers) -> Numbers:
    return np.stack([np.ones_like(ranks), 1 / ranks], axis=1)


def _exchange_columns(work: Work, ranks: Numbers) -> Numbers:
    updates = work.updates(ranks)
    sent = ring_share(ranks) * work.gradient_bytes
    return np.stack([work.images / ranks, ring_passes(ranks) * updates, sent * updates], axis=1)


AMDAHL = Model(name="Amdahl", unknowns=2, columns=_amdahl_columns)
EXCHANGE = Model(name="compute and exchange", unknowns=3, columns=_exchange_columns)
MODELS = (AMDAHL, EXCHANGE)


@dataclass(frozen=True)
class Fit:
    """A model with its unknowns found.

    Attributes:
        values: (unknowns,) float64, in the order of the model's columns.
    """

    model: Model
    work: Work
    values: Numbers

    def seconds(self, ranks: Sequence[float]) -> Numbers:
        """Return training seconds on each number of ranks."""
        return self.model.columns(self.work, np.array(ranks, dtype=float)) @ self.values

    def speedup(self, ranks: Sequence[float], *, base: int) -> Numbers:
        """Return how many times as fast as on `base` ranks it is."""
        return self.seconds([base])[0] / self.seconds(ranks)

    def words(self) -> str:
        """Return what the unknowns say."""
        if self.model is AMDAHL:
            return f"serial share {100 * self.values[0] / self.values.sum():.1f} %"
        compute, latency, per_byte = self.values
        bandwidth = f"{in_figures(1e-9 / per_byte, 3)} GB/s" if per_byte > 0 else "no limit by bandwidth"
        return f"{in_figures(1e3 * compute, 3)} ms per image, latency {1e6 * latency:,.0f} µs, {bandwidth}"


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """How well a model, fitted to the fewer ranks, predicts the time on the most.

    Attributes:
        fitted_to: the most ranks it was fitted to.
        ranks: the most there are.
        error: predicted / measured - 1, of the median.
    """

    fitted_to: int
    ranks: int
    error: float


@dataclass(frozen=True, kw_only=True)
class Projection:
    """What a model predicts for a number of ranks that was not measured.

    Attributes:
        speedup: over the fitted time on the base's ranks.
        seconds_interval, speedup_interval: 95 % of fits to resampled runs, made wider by the error of the point that
            was held out, for no resampling shows what a model leaves out.
    """

    ranks: int
    seconds: float
    seconds_interval: Interval
    speedup: float
    speedup_interval: Interval


Adapt = Callable[[Fit, int], Fit]


def fit(model: Model, ranks: Sequence[int], seconds: Sequence[float], work: Work) -> Fit | None:
    """Fit a model to runs, each by its relative error; None if there are fewer numbers of ranks than unknowns."""
    if len(set(ranks)) < model.unknowns:
        return None
    return _fitted(model, np.array(ranks, dtype=float), np.array(seconds, dtype=float), work)


def _fitted(model: Model, ranks: Numbers, seconds: Numbers, work: Work) -> Fit:
    from scipy.optimize import nnls  # here, because it takes half a second to load

    columns = model.columns(work, ranks) / seconds[:, None]
    sizes = np.linalg.norm(columns, axis=0)  # of very different units: seconds, bytes
    return Fit(model, work, nnls(columns / sizes, np.ones(len(seconds)))[0] / sizes)


def held_out(model: Model, ranks: Sequence[int], seconds: Sequence[float], work: Work) -> HeldOut | None:
    """Fit to all but the most ranks and predict those; None if too few numbers of ranks are left."""
    sizes, times = np.array(ranks), np.array(seconds, dtype=float)
    most = max(ranks)
    fewer = sizes < most
    found = fit(model, sizes[fewer].tolist(), times[fewer].tolist(), work)
    if found is None:
        return None
    error = float(found.seconds([most])[0] / np.median(times[~fewer])) - 1
    return HeldOut(fitted_to=int(sizes[fewer].max()), ranks=most, error=error)


def farthest(ranks: Sequence[int]) -> int:
    """Return the most ranks that may be projected to: as many times the most measured as a held-out point was away."""
    sizes = sorted(set(ranks))
    return sizes[-1] * sizes[-1] // sizes[-2] if len(sizes) >= FEWEST_SIZES else sizes[-1]


def projection(
    model: Model, ranks: Sequence[int], seconds: Sequence[float], work: Work, *, to: int, adapt: Adapt | None = None
) -> Projection | None:
    """Predict how long training takes on `to` ranks; None if nothing that was held out supports it.

    Args:
        model: to be fitted.
        ranks, seconds: of each run.
        work: of these runs.
        to: number of ranks.
        adapt: fit, ranks -> fit of another machine; None: this one.
    """
    judged, found = held_out(model, ranks, seconds, work), fit(model, ranks, seconds, work)
    if judged is None or found is None or abs(judged.error) > LARGEST_ERROR or to > farthest(ranks):
        return None
    sizes, times = np.array(ranks), np.array(seconds, dtype=float)
    groups = [np.flatnonzero(sizes == p) for p in np.unique(sizes)]
    random = np.random.default_rng(0)  # the same runs give the same projection
    fits = [found]
    for _ in range(_RESAMPLES):
        drawn = np.concatenate([random.choice(group, len(group)) for group in groups])
        fits.append(_fitted(model, sizes[drawn].astype(float), times[drawn], work))
    base, wider = min(ranks), 1 + abs(judged.error)
    there, bases = (np.array([(adapt(one, p) if adapt else one).seconds([p])[0] for one in fits]) for p in (to, base))
    return Projection(
        ranks=to,
        seconds=float(there[0]),
        seconds_interval=_interval(there[1:], wider=wider),
        speedup=float(bases[0] / there[0]),
        speedup_interval=_interval(bases[1:] / there[1:], wider=wider),
    )


def adapted(found: Fit, *, compute: float, bandwidth: float | None) -> Fit:
    """Return a fit of compute and exchange, adapted to another machine.

    Args:
        found: on this one.
        compute: operations per second of the other machine relative to this one.
        bandwidth: bytes per second of its network; None: as fitted.
    """
    assert found.model is EXCHANGE, "Amdahl's law does not separate compute from exchange"
    per_image, latency, per_byte = found.values
    per_byte = per_byte if bandwidth is None else 1 / bandwidth
    return replace(found, values=np.array([per_image / compute, latency, per_byte]))


def _interval(values: Numbers, *, wider: float) -> Interval:
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    assert math.isfinite(low), "times are positive"
    return Interval(float(low) / wider, float(high) * wider)
