"""How many times as fast one GPU is as another: a bracket over models and batch sizes, where none is published."""

from collections.abc import Sequence

from analysis.output.tables import Cell, Table
from analysis.projection.ratio import EQUAL, SpeedRatio, speed_ratio
from analysis.projection.study import Study
from analysis.runs.labels import framework_label
from common.sites.table import Gpu

# Model, image (channels, height, width), outputs: those of MNIST and of the thesis.
MODELS: tuple[tuple[str, tuple[int, int, int], int], ...] = (
    ("mlp", (1, 28, 28), 10),
    ("dense500", (1, 28, 28), 10),
    ("cnn", (1, 28, 28), 10),
    ("simplecnn", (1, 28, 28), 10),
    ("resnet34", (1, 148, 197), 9),
    ("resnet34", (3, 224, 224), 1000),
)
BATCHES = (16, 64, 256)
DTYPES = ("float32", "float16")


def ratios(
    first: Gpu,
    second: Gpu,
    *,
    batches: Sequence[int] = BATCHES,
    dtypes: Sequence[str] = DTYPES,
    framework: str = "torch",
    study: Study | None = None,
) -> list[tuple[str, str, str, int, SpeedRatio]]:
    """Return model, image, dtype, batch and ratio of speeds, for each model, dtype and batch size."""
    return [
        (
            model,
            " x ".join(map(str, image)),
            dtype,
            batch,
            speed_ratio(
                model, image=image, outputs=outputs, batch=batch, dtype=dtype, framework=framework, first=first,
                second=second, study=study,
            ),
        )
        for dtype in dtypes
        for model, image, outputs in MODELS
        for batch in batches
    ]  # fmt: skip


def ratio_table(first: Gpu, second: Gpu, *, published: float | None, study: Study | None = None) -> Table:
    """Return the ratios of two GPUs.

    Args:
        first, second: the faster and the slower one.
        published: ratio to compare with: the last column is how well the second GPU would have to be used, with the
            first as 1, for this ratio.
        study: None: the project's own.
    """
    headings = ["model", "image", "type", "batch", "ratio", "lowest", "highest"]
    heading = f"used so well for {published:g} times" if published else ""
    rows: list[list[Cell]] = []
    for model, image, dtype, batch, found in ratios(first, second, study=study):
        needed = [found.ratio / published] if published else []
        rows.append([model, image, dtype, batch, found.ratio, found.low, found.high, *needed])
    formats = {"batch": "d"} | dict.fromkeys((*headings[4:], heading), ".2f")
    title = f"{first.name} / {second.name}: times as fast, {framework_label('torch')} ({EQUAL})"
    return Table(title, [*headings, *([heading] if heading else [])], rows, formats)
