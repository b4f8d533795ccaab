"""Writes the figures in `common/twins/README.md`: pairs of models, and planted differences that were found.

    .venv/bin/python tests/common/twins/survey.py

Takes about 10 minutes on two cores that are otherwise idle.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from tabulate import tabulate  # noqa: E402
from twins_planted import MODELS, outcomes  # noqa: E402

PAGE = ROOT / "common" / "twins" / "README.md"
BEGIN, END = "<!-- twins: begin -->", "<!-- twins: end -->"
PAIRS_FOLDER = Path(__file__).parent / "pairs"


def library(torch: str, keras: str, size: int = 96) -> list[str]:
    """Return arguments for models of torchvision and Keras."""
    return [
        "--torch",
        f"torchvision.models:{torch}",
        "--keras",
        f"keras.applications:{keras}",
        "--input",
        *[str(size)] * 2,
        "3",
    ]


PAIRS = {
    "MobileNetV2, 96 x 96": library("mobilenet_v2", "MobileNetV2(classifier_activation=None)"),
    "ResNet-50, v1.5 and v1, 96 x 96": library("resnet50", "ResNet50(classifier_activation=None)"),
    "VGG16, 224 x 224": library("vgg16", "VGG16(classifier_activation=None)", 224),
    "EfficientNet-B0, 96 x 96": library("efficientnet_b0", "EfficientNetB0(classifier_activation=None)"),
    "ConvNeXt-T, 96 x 96": library(
        "convnext_tiny", "ConvNeXtTiny(classifier_activation=None, include_preprocessing=False)"
    ),
    "ViT-B/16, 96 x 96": [str(PAIRS_FOLDER / "vit_b16.py")],
    "GPT, 6 layers, 64 tokens": [str(PAIRS_FOLDER / "gpt.py")],
    "U-Net, 96 x 96": [str(PAIRS_FOLDER / "unet.py")],
}


def pair_row(name: str, arguments: list[str], folder: Path) -> list[str]:
    """Compare a pair; return its row."""
    command = [sys.executable, "-m", "common", "twins", *arguments, "--page", str(folder / "page.html"), "--force"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    done = subprocess.run(command, text=True, capture_output=True, check=False, env=environment)
    seconds = time.monotonic() - start
    sys.stdout.write(f"== {name}: {seconds:.0f} s\n{done.stdout}{done.stderr}\n")
    text = done.stdout
    memory = [float(one) for one in re.findall(r"(\d+\.\d) GB", text)]
    layers = re.search(r"one by one: (\d+)", text)
    causes = re.findall(r"^ \d+\. .*?: (\w+), ", text, re.MULTILINE)
    if "only in" in text:
        causes.append("arrays")
    updates = re.search(r"AdamW updates: (\d+)", text)
    return [
        name,
        text.partition(":")[0].capitalize(),
        ", ".join(dict.fromkeys(causes)),
        layers[1] if layers else "",
        updates[1] if updates else "",
        f"{seconds:.0f}",
        f"{max(memory, default=0):.1f}",
    ]


def main() -> None:
    """Measure, and write the tables."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        pairs = [pair_row(name, arguments, folder) for name, arguments in PAIRS.items()]
        planted = []
        for model in MODELS:
            start = time.monotonic()
            found = outcomes(model, folder / model, threads=2)
            differences = [one for one in found if one.planted]
            rewrites = [one for one in found if not one.planted]
            missed = [one.plant for one in found if not one.found]
            sys.stdout.write(f"== {model}: missed {missed}, {time.monotonic() - start:.0f} s\n")
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
