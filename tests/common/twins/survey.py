"""Writes the figures in `common/twins/README.md`: pairs of models, and planted differences that were found.

    .venv/bin/python tests/common/twins/survey.py

Takes about 10 minutes on two cores that are otherwise idle.
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

from common.twins.contract import PairSource  # noqa: E402
from common.twins.processes import compare  # noqa: E402
from common.twins.report import report_lines  # noqa: E402
from common.twins.verdict import judge  # noqa: E402

PAGE = ROOT / "common" / "twins" / "README.md"
BEGIN, END = "<!-- twins: begin -->", "<!-- twins: end -->"
PAIRS_FOLDER = Path(__file__).parent / "pairs"


def library(torch: str, keras: str, size: int = 96) -> PairSource:
    """Return a model of torchvision and one of Keras."""
    return PairSource(torch=f"torchvision.models:{torch}", keras=f"keras.applications:{keras}", input=[size, size, 3])


PAIRS = {
    "MobileNetV2, 96 x 96": library("mobilenet_v2", "MobileNetV2(classifier_activation=None)"),
    "ResNet-50, v1.5 and v1, 96 x 96": library("resnet50", "ResNet50(classifier_activation=None)"),
    "VGG16, 224 x 224": library("vgg16", "VGG16(classifier_activation=None)", 224),
    "EfficientNet-B0, 96 x 96": library("efficientnet_b0", "EfficientNetB0(classifier_activation=None)"),
    "ConvNeXt-T, 96 x 96": library(
        "convnext_tiny", "ConvNeXtTiny(classifier_activation=None, include_preprocessing=False)"
    ),
    "ViT-B/16, 96 x 96": PairSource(file=str(PAIRS_FOLDER / "vit_b16.py")),
    "GPT, 6 layers, 64 tokens": PairSource(file=str(PAIRS_FOLDER / "gpt.py")),
    "U-Net, 96 x 96": PairSource(file=str(PAIRS_FOLDER / "unet.py")),
}


def pair_row(name: str, source: PairSource) -> list[str]:
    """Compare a pair; return its row."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        comparison = compare(source, Path(folder))
        seconds = time.monotonic() - start
    verdict = judge(comparison)
    print(f"== {name}: {seconds:.0f} s", *report_lines(comparison, verdict, page=""), sep="\n", flush=True)
    kinds = [one.cause.kind for one in verdict.found] + [kind for kind, _, _ in verdict.training]
    if comparison.only_torch or comparison.only_keras:
        kinds.insert(0, "arrays")
    layers = sum(row.torch is not None and row.keras is not None for row in comparison.rows)
    memory = max(comparison.memory_bytes.values()) / 1e9
    found = ", ".join(dict.fromkeys(kinds))
    return [name, verdict.level, found, str(layers), str(comparison.whole.updates), f"{seconds:.0f}", f"{memory:.1f}"]


def main() -> None:
    """Measure, and write the tables."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        pairs = [pair_row(name, source) for name, source in PAIRS.items()]
        planted = []
        for model in MODELS:
            start = time.monotonic()
            found = outcomes(model, folder / model, threads=2)
            differences = [one for one in found if one.planted]
            rewrites = [one for one in found if not one.planted]
            missed = [one.plant for one in found if not one.found]
            print(f"== {model}: missed {missed}, {time.monotonic() - start:.0f} s", flush=True)
            counts = [f"{sum(one.found for one in ones)} of {len(ones)}" for ones in (differences, rewrites)]
            planted.append([model, *counts, ", ".join(missed)])
    headers = ["models", "verdict", "what differs", "layers", "updates", "seconds", "GB"]
    tables = [
        tabulate(pairs, headers, tablefmt="pipe", disable_numparse=True),
        tabulate(
            planted,
            ["model", "planted, found and named", "rewritten, recognized", "missed"],
            tablefmt="pipe",
            disable_numparse=True,
        ),
    ]
    cores = len(os.sched_getaffinity(0))
    made = f"Measured on {date.today().isoformat()}: {cores} cores, one run each; GB of the larger process."
    page = PAGE.read_text()
    start, rest = page.split(BEGIN)
    PAGE.write_text(f"{start}{BEGIN}\n{made}\n\n{tables[0]}\n\n{tables[1]}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
