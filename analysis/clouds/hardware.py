"""The published comparison of CTE-POWER and AWS, beside the ratios of their hardware."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.output.finding import Finding
from analysis.output.tables import Cell, Table
from analysis.questions.clouds.machines import all_machine_tables
from analysis.runs.published import Claim, published_claims, read_published
from common.sites.table import BITS_PER_BYTE, Gpu, Site, Sites

NEAR = 0.15  # of the published figure, which is "almost 7": a ratio within this share of it explains it


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as much the base has as the other site.

    Attributes:
        figure: what, with its unit.
        base, other: its values.
    """

    figure: str
    base: float
    other: float

    @property
    def times(self) -> float:
        """The ratio."""
        return self.base / self.other

    def verdict(self, published: float) -> str:
        """Return whether it alone explains a published ratio of times."""
        if abs(self.times / published - 1) <= NEAR:
            return "explains it"
        return "too little" if self.times < published else "more than enough"


def published_claim() -> Claim:
    """Return the published ratio of times between AWS and CTE-POWER."""
    sources = list(read_published().sources)
    return next(claim for claim in published_claims(sources) if claim.base and claim.times)


def ratios(sites: Sites, claim: Claim) -> list[Ratio]:
    """Return what hardware predicts: a GPU of the base against one of each of the claim's sites, equal ones once."""
    base = sites[claim.base or ""]
    found = [one for name in claim.sites for one in _ratios(base, sites[name], name=name, sites=sites)]
    return list(dict.fromkeys(found))


def _ratios(base: Site, other: Site, *, name: str, sites: Sites) -> list[Ratio]:
    ours, theirs = sites.gpu_of(base), sites.gpu_of(other)
    assert ours and theirs, "the claim is about GPUs"
    pairs: list[tuple[str, float | None, float | None]] = [
        ("FP32, TFLOPS", ours.fp32_tflops, theirs.fp32_tflops),
        ("FP16, TFLOPS", _fp16(ours), _fp16(theirs)),
        ("memory bandwidth, GB/s", ours.memory_bandwidth_gb_s, theirs.memory_bandwidth_gb_s),
        ("host link of a GPU, GB/s", base.host_link_gb_s, other.host_link_gb_s),
        (f"network of {name}, Gb/s", _gigabits(base), _gigabits(other)),
    ]
    return [Ratio(figure=figure, base=one, other=two) for figure, one, two in pairs if one and two]


def _fp16(gpu: Gpu) -> float:
    """Return the peak in float16: of tensor cores, or that of float32 where there are none."""
    return gpu.tensor_tflops or gpu.fp32_tflops


def _gigabits(site: Site) -> float | None:
    return site.network_bytes_per_second * BITS_PER_BYTE / 1e9 if site.network_bytes_per_second else None


def find_hardware(sites: Sites) -> Finding:
    """Return the published comparison and which ratio of the hardware explains it."""
    claim = published_claim()
    assert claim.times is not None, "it is a ratio of times"
    found = ratios(sites, claim)
    rows: list[list[Cell]] = [["time, " + claim.words, None, None, claim.times, "published", None]]
    rows += [[one.figure, one.base, one.other, one.times, "computed", one.verdict(claim.times)] for one in found]
    headings = ["figure", str(claim.base), "AWS G3", "times", "kind", f"explains {claim.times:g} times?"]
    formats = dict.fromkeys(headings[1:3], ".4g") | {"times": ".2f"}
    others = [one for one in published_claims(["article"]) if one != claim]
    return Finding(
        name="published",
        question="How do CTE-POWER and AWS compare as published, and what explains it?",
        answer=_answer(claim, found),
        tables=[
            Table("Published ratio of times, and ratios of the hardware", headings, rows, formats),
            *all_machine_tables(sites),
        ],
        notes=[
            f"published in: {claim.source}, {claim.where}; model and batch are not stated",
            *(f"published in: {one.source}, {one.where}: {one.words}" for one in others),
            f"a ratio explains the published one if it is within {100 * NEAR:g} % of it",
            "FP16: of tensor cores on the V100; the M60 has none and counts with its FP32",
            "the network matters only to runs on several nodes",
        ],
    )


def _answer(claim: Claim, found: Sequence[Ratio]) -> str:
    by_figure = {one.figure.split(",")[0]: one.times for one in found}
    fp32, bandwidth, fp16 = (by_figure[name] for name in ("FP32", "memory bandwidth", "FP16"))
    return (
        f"Published: training takes almost {claim.times:g} times as long on AWS G3 (M60) as on CTE-POWER (V100), at "
        f"very similar accuracy. Computed: FP32 gives {fp32:.1f} times and memory bandwidth {bandwidth:.1f}, too "
        f"little; float16 on tensor cores gives {fp16:.0f}, more than enough."
    )
