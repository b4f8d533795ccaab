"""The published ratio of times bracketed by projections over stated models and batches; images per second by GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from analysis.clouds.hardware import published_claim
from analysis.clouds.workloads import WORKLOADS, Workload, settings_of, step_on
from analysis.output.finding import Finding, Plot
from analysis.output.plots import COLORS, IDEAL, label_rows, legend_below
from analysis.output.tables import Cell, Table
from analysis.projection.ratio import EQUAL, speed_ratio
from analysis.projection.study import read_study
from common.sites.table import Gpu, Sites

_DTYPES = {"float32": "float32 on both", "float16": "V100 in float16, M60 in float32"}
_LOOKS = {"float32": (COLORS[0], "o"), "float16": (COLORS[1], "s")}


@dataclass(frozen=True, kw_only=True)
class Bracket:
    """How many times as long a GPU takes as that of the base.

    Attributes:
        dtype: of the base; the other computes in float32.
        low, times, high: times at the fitted efficiencies, the same for both GPUs; low and high: of both frameworks, of
            compute alone and of memory alone.
    """

    workload: Workload
    dtype: str
    low: float
    times: float
    high: float

    def holds(self, published: float) -> bool:
        """Return whether the published ratio is in the interval."""
        return self.low <= published <= self.high


def brackets(ours: Gpu, theirs: Gpu) -> list[Bracket]:
    """Return the ratios of all workloads in both types; a GPU without tensor cores has nothing to gain from float16."""
    found = []
    for workload in WORKLOADS:
        for dtype in _DTYPES:
            if dtype != "float32" and ours.tensor_tflops is None:
                continue
            ratio = speed_ratio(**settings_of(workload), dtype=dtype, first=ours, second=theirs)
            found.append(Bracket(workload=workload, dtype=dtype, low=ratio.low, times=ratio.ratio, high=ratio.high))
    return found


def find_projected(sites: Sites) -> Finding:
    """Return the ratio of the published comparison and the throughput of every GPU, projected per model and batch."""
    claim = published_claim()
    assert claim.base and claim.times, "it is a ratio of times to a base"
    ours, theirs = sites.gpu_of(sites[claim.base]), sites.gpu_of(sites[claim.sites[0]])
    assert ours and theirs, "the claim is about GPUs"
    found = brackets(ours, theirs)
    study = read_study()
    return Finding(
        name="projected",
        question="Which models and batches take that many times as long?",
        answer=_answer(found, claim.times),
        tables=[_bracket_table(found, claim.times), _throughput_table(sites)],
        plots=[_bracket_plot(found, claim.times)],
        notes=[
            f"projection: a roofline per layer and the ring of the exchange, fitted to {study.runs} runs on "
            f"{study.machine}; it was never measured on a GPU: the intervals, which span all efficiencies found there, "
            "are an assumption (`python -m analysis projection`)",
            "images/s, and times and costs that follow from them: efficiencies of PyTorch, float32, without the "
            "loading of images",
            f"ratios: {EQUAL}; from and to: of both frameworks, of compute alone and of memory alone; the share is "
            f"what the M60 would have to reach, with the V100's as 1, to take {claim.times:g} times as long",
        ],
    )


def _answer(found: Sequence[Bracket], published: float) -> str:
    spans = []
    for dtype in _DTYPES:
        of_type = [one for one in found if one.dtype == dtype]
        spans.append((min(one.low for one in of_type), max(one.high for one in of_type)))
    holding = [one for one in found if one.holds(published)]
    named = ", ".join(dict.fromkeys(one.workload.model for one in holding))
    where = " and ".join(one for one in _DTYPES if one in {each.dtype for each in holding})
    explained = f"{published:g} times is within no interval."
    if holding:
        explained = f"{published:g} times is within the interval of some batches of {named}, in {where} only."
    (low, high), (low16, high16) = spans
    return (
        f"Projected over {len(WORKLOADS)} models and batches: in float32 the M60 takes {low:.1f} to {high:.1f} times "
        f"as long as the V100. Against float16 on the V100's tensor cores it takes {low16:.1f} to {high16:.0f} times "
        f"as long; {explained}"
    )


def _bracket_table(found: Sequence[Bracket], published: float) -> Table:
    headings = ["training", "V100 against M60", "times as long", "from", "to", f"{published:g} times within",
                f"share for {published:g}", "kind"]  # fmt: skip
    rows: list[list[Cell]] = [
        [one.workload.label, _DTYPES[one.dtype], one.times, one.low, one.high,
         "yes" if one.holds(published) else "no", one.times / published, "projected"]
        for one in found
    ]  # fmt: skip
    formats = dict.fromkeys((*headings[2:5], headings[6]), ".2f")
    return Table("Times as long on one M60 as on one V100", headings, rows, formats)


def _throughput_table(sites: Sites) -> Table:
    headings = ["training", "GPU", "images/s", "from", "to", "kind"]
    rows: list[list[Cell]] = []
    used = {site.gpu for site in sites.sites.values()}
    for workload in WORKLOADS[1::2]:  # the larger batch of each model
        for name, gpu in sites.gpus.items():
            if name in used and gpu.memory_bandwidth_gb_s is not None:
                step = step_on(workload, gpu)
                speeds = (step.images / seconds for seconds in (step.seconds, step.seconds_high, step.seconds_low))
                rows.append([workload.label, gpu.name, *speeds, "projected"])
    return Table("Images per second on one GPU, float32", headings, rows, dict.fromkeys(headings[2:5], ",.0f"))


def _bracket_plot(found: Sequence[Bracket], published: float) -> Plot:
    figure = Figure(figsize=(7.0, 0.9 + 0.42 * len(WORKLOADS)))
    ax = figure.subplots()
    for one in found:
        place = WORKLOADS.index(one.workload) + (0.16 if one.dtype == "float16" else -0.16)
        color, marker = _LOOKS[one.dtype]
        reach = [[one.times - one.low], [one.high - one.times]]
        look = {"color": color, "marker": marker, "capsize": 2.5, "linestyle": "", "label": _DTYPES[one.dtype]}
        ax.errorbar(one.times, place, xerr=reach, **look)  # type: ignore[arg-type]
    ax.axvline(published, label=f"published: almost {published:g}", **IDEAL)
    label_rows(ax, [workload.label for workload in WORKLOADS])
    ax.set_xscale("log")
    ax.set_xticks([1, 2, 5, 7, 10, 20], ["1", "2", "5", "7", "10", "20"])
    ax.minorticks_off()
    ax.set_xlabel("times as long on the M60 (projected)")
    legend_below(figure, ncols=2)
    figure.suptitle("The published ratio of times, and projected ones")
    data = _bracket_table(found, published)
    return Plot("clouds-projected", figure, replace(data, title="Projected ratios of times"))
