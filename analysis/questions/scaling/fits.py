"""The models of training time, fitted to the curves of a study, with what was held out and what may be projected."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from analysis.projection.ratio import SpeedRatio
from analysis.questions.scaling.curves import PLAIN, Kind, Study, training_runs, work_of
from analysis.questions.scaling.models import (
    EXCHANGE,
    FEWEST_SIZES,
    LARGEST_ERROR,
    MODELS,
    Fit,
    HeldOut,
    Projection,
    adapted,
    farthest,
    fit,
    held_out,
    projection,
)
from analysis.stats.inference import Interval

_KINDS: tuple[Kind, ...] = ("strong", "weak")


@dataclass(frozen=True)
class TargetSite:
    """Another site.

    Attributes:
        compute: how many times as fast as the measured site it takes the step.
        bandwidth: bytes per second of its network; None: not known.
        node: GPUs of a node; up to this many ranks nothing is sent over the network.
    """

    name: str
    compute: SpeedRatio
    bandwidth: float | None
    node: int

    def projected(self, project: Callable[..., Projection | None]) -> Projection | None:
        """Return the projection to this site; its interval spans those at the lowest and highest ratio of compute.

        Args:
            project: `projection`, of all but `adapt`.
        """

        def adapt(compute: float, found: Fit, ranks: int) -> Fit:
            return adapted(found, compute=compute, bandwidth=self.bandwidth if ranks > self.node else None)

        ratios = self.compute.ratio, self.compute.low, self.compute.high
        found = [one for ratio in ratios if (one := project(adapt=partial(adapt, ratio)))]
        if not found:
            return None
        seconds, speedups = ([getattr(one, name) for one in found] for name in ("seconds_interval", "speedup_interval"))
        return replace(found[0], seconds_interval=_hull(seconds), speedup_interval=_hull(speedups))


def _hull(intervals: Sequence[Interval]) -> Interval:
    return Interval(min(one.low for one in intervals), max(one.high for one in intervals))


@dataclass(frozen=True, kw_only=True)
class CurveFit:
    """A model fitted to a curve.

    Attributes:
        ranks: of the runs it was fitted to.
        judged: its error on the point that was held out; None: too few numbers of ranks.
        site: for which the projections are.
    """

    study: Study
    kind: Kind
    fit: Fit
    ranks: Sequence[int]
    judged: HeldOut | None
    site: str
    projections: list[Projection] = field(default_factory=list)


def fits_of(study: Study, *, project: int | None, target_site: TargetSite | None) -> tuple[list[CurveFit], list[str]]:
    """Fit all models to the curves of a study.

    Args:
        study: base and points.
        project: number of ranks to project to; None: doubled as often as held-out points support.
        target_site: site to project to; None: where it was measured.

    Returns:
        fits, and in words what was not fitted or projected and why.
    """
    fits, notes = [], []
    for kind in _KINDS if not study.other_machine else ():
        points = study.curve(kind)
        if not points:
            continue
        name = f"{study.label}, {kind} scaling"
        sizes = sorted({study.base.first.np, *(point.ranks for point in points)})
        reason = _why_no_fit(study, kind, sizes)
        if reason:
            notes.append(f"{name}: no projection is supported: {reason}")
            continue
        of_curve = _fitted(study, kind, project=project, target_site=target_site)
        fits += of_curve
        notes += [f"{name}: {words}" for words in _why_no_projection(of_curve, sizes, project, target_site)]
        alone = [str(p) for p in sizes if of_curve and list(of_curve[0].ranks).count(p) == 1]
        if alone and any(one.projections for one in of_curve):
            notes.append(
                f"{name}: only one run on {', '.join(alone)} ranks: the interval of a projection includes the error of "
                "its model, but not the variation between runs there"
            )
    return fits, notes


def _why_no_fit(study: Study, kind: Kind, sizes: Sequence[int]) -> str | None:
    if len(sizes) < FEWEST_SIZES:
        return (
            f"there are {len(sizes)} numbers of ranks ({', '.join(map(str, sizes))}); it takes {FEWEST_SIZES}, two to "
            "fit a model and one to test it on"
        )
    if study.strategy != PLAIN:
        return "the models describe ranks that average gradients at every update"
    own = study.base.first.np
    if any(point.devices != point.ranks / own for point in study.curve(kind)):
        return "cores do not grow with ranks, the models take both as one"
    if work_of(study, kind) is None:
        return "the parameters of the model or the batch are not recorded"
    return None


def _fitted(study: Study, kind: Kind, *, project: int | None, target_site: TargetSite | None) -> list[CurveFit]:
    ranks, seconds = training_runs(study, kind)
    work = work_of(study, kind)
    assert work is not None, "asked before"
    found = []
    for model in MODELS:
        fitted = fit(model, ranks, seconds, work)
        if fitted is None:
            continue
        adaptable = target_site is None or model is EXCHANGE
        targets = _targets(ranks, project) if adaptable else []
        to_targets = [partial(projection, model, ranks, seconds, work, to=to) for to in targets]
        projections = [one for at in to_targets if (one := target_site.projected(at) if target_site else at())]
        found.append(
            CurveFit(
                study=study, kind=kind, fit=fitted, ranks=ranks, judged=held_out(model, ranks, seconds, work),
                site=target_site.name if target_site else study.base.first.site, projections=projections,
            )
        )  # fmt: skip
    return found


def _targets(ranks: Sequence[int], asked: int | None) -> list[int]:
    if asked is not None:
        return [asked]
    most, limit = max(ranks), farthest(ranks)
    doubled = [most * 2**times for times in range(1, limit.bit_length()) if most * 2**times <= limit]
    return doubled or ([limit] if limit > most else [])


def _why_no_projection(
    fits: Sequence[CurveFit], sizes: Sequence[int], asked: int | None, target_site: TargetSite | None
) -> list[str]:
    limit, reasons = farthest(sizes), []
    if asked is not None and asked > limit:
        reasons.append(
            f"no projection to {asked} ranks: measured on up to {sizes[-1]}, with {sizes[-1]} predicted from up to "
            f"{sizes[-2]}, it may go to {limit}"
        )
    for one in fits:
        if one.judged is None:
            reasons.append(
                f"{one.fit.model.name}: not tested on a point held out, and not projected: {one.fit.model.unknowns} "
                f"unknowns and one point to test need {one.fit.model.unknowns + 1} numbers of ranks"
            )
        elif abs(one.judged.error) > LARGEST_ERROR:
            reasons.append(
                f"{one.fit.model.name}: not projected because it misses the time on {one.judged.ranks} ranks by "
                f"{100 * one.judged.error:+.0f} %"
            )
    if target_site and not any(one.fit.model is EXCHANGE and one.projections for one in fits):
        reasons.append(
            f"no projection to {target_site.name}: {EXCHANGE.name} has none, and only that model can be adapted"
        )
    return reasons
