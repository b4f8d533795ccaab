"""Writes the figures in `common/twins/README.md`: pairs of models, and planted differences that were found.

    .venv/bin/python tests/common/twins/survey.py            both tables
    .venv/bin/python tests/common/twins/survey.py planted    or pairs: one of them

The seconds mean something only where nothing else runs.
"""

import os
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from tabulate import tabulate  # noqa: E402
from twins_planted import MODELS, outcomes  # noqa: E402

from common.distributed.console import counted  # noqa: E402
from common.twins.contract import PairSource  # noqa: E402
from common.twins.processes import compare  # noqa: E402
from common.twins.report import report_lines  # noqa: E402
from common.twins.verdict import judge  # noqa: E402

PAGE = ROOT / "common" / "twins" / "README.md"
PAIRS_FOLDER = Path(__file__).parent / "pairs"


def library(torch: str, keras: str, size: int = 96) -> PairSource:
    """Return a model of torchvision and one of Keras."""
    return PairSource(torch=f"torchvision.models:{torch}", keras=f"keras.applications:{keras}", input=[size, size, 3])


PAIRS = {
    "VGG16, 224 x 224": library("vgg16", "VGG16(classifier_activation=None)", 224),
    "ViT-B/16, 96 x 96": PairSource(file=str(PAIRS_FOLDER / "vit_b16.py")),
    "ConvNeXt-T, 96 x 96": library(
        "convnext_tiny", "ConvNeXtTiny(classifier_activation=None, include_preprocessing=False)"
    ),
    "GPT, 6 layers, 64 tokens": PairSource(file=str(PAIRS_FOLDER / "gpt.py")),
    "U-Net, 96 x 96": PairSource(file=str(PAIRS_FOLDER / "unet.py")),
    "ResNet-50, v1.5 and v1, 96 x 96": library("resnet50", "ResNet50(classifier_activation=None)"),
    "MobileNetV2, 96 x 96": library("mobilenet_v2", "MobileNetV2(classifier_activation=None)"),
    "EfficientNet-B0, 96 x 96": library("efficientnet_b0", "EfficientNetB0(classifier_activation=None)"),
}


HEADERS = {
    "pairs": ["models", "verdict", "what differs", "layers", "updates", "seconds", "GB, larger process"],
    "planted": ["model", "planted, found and named", "written otherwise, recognized", "missed"],
}


def pair_row(name: str, source: PairSource) -> list[str]:
    """Compare a pair; return its row."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        comparison = compare(source, Path(folder))
        seconds = time.monotonic() - start
    verdict = judge(comparison)
    print(f"== {name}: {seconds:.0f} s", *report_lines(comparison, verdict, page=""), sep="\n", flush=True)
    causes = [*comparison.unmatched, *(difference.cause for difference in verdict.differences), *verdict.training]
    kinds = [cause.kind for cause in causes]
    layers = sum(row.both for row in comparison.rows)
    memory = max(side.memory_bytes for side in comparison.sides.values()) / 1e9
    found = ", ".join(dict.fromkeys(kinds))
    return [name, verdict.level, found, str(layers), str(comparison.whole.updates), f"{seconds:.0f}", f"{memory:.1f}"]


def planted_row(model: str) -> list[str]:
    """Compare a model with its planted differences and its rewrites; return its row."""
    with tempfile.TemporaryDirectory() as folder:
        found = outcomes(model, Path(folder), threads=len(os.sched_getaffinity(0)))
    missed = [one.plant for one in found if not one.found]
    print(f"== {model}: missed {missed}", flush=True)
    counts = []
    for planted in (True, False):
        ones = [one.found for one in found if one.planted is planted]
        counts.append(f"{sum(ones)} of {len(ones)}")
    return [model, *counts, ", ".join(missed)]


def write(table: str, rows: list[list[str]]) -> None:
    """Write what has been measured so far into the page."""
    begin, end = f"<!-- twins: {table} -->", f"<!-- end of {table} -->"
    cores = len(os.sched_getaffinity(0))
    made = f"Measured on {date.today().isoformat()} with {counted(cores, 'core')}, one run each."
    text = tabulate(rows, HEADERS[table], tablefmt="pipe", disable_numparse=True)
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(f"{before}{begin}\n{made}\n\n{text}\n{end}{rest.split(end)[1]}")


def main(tables: list[str]) -> None:
    """Measure, and write a table after each row."""
    rows: dict[str, list[list[str]]] = {table: [] for table in tables or HEADERS}
    for name, source in PAIRS.items() if "pairs" in rows else ():
        rows["pairs"].append(pair_row(name, source))
        write("pairs", rows["pairs"])
    for model in MODELS if "planted" in rows else ():
        rows["planted"].append(planted_row(model))
        write("planted", rows["planted"])


if __name__ == "__main__":
    main(sys.argv[1:])
