"""Plots of `parity.json`: loss curves and how far they part, and the drift of weights over ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from analysis.output.plots import STYLES, legend_below
from analysis.runs.labels import framework_label
from common.checks.parity_record import Curve, ParityRecord

COLUMN_INCHES, NARROWEST_INCHES = 2.7, 7.5
DTYPE_STYLES: dict[tuple[str, bool], dict[str, Any]] = {
    ("float64", False): {"color": "#009E73", "linestyle": "-", "marker": ".", "label": "float64"},
    ("float32", False): {"color": "#CC79A7", "linestyle": "-", "marker": ".", "label": "float32"},
    ("float64", True): {"color": "#000000", "linestyle": "", "marker": "x", "label": "float64, each from one state"},
}
LIMIT_STYLE: dict[str, Any] = {"color": "#666666", "linestyle": ":", "linewidth": 1.2, "label": "limit (float64)"}


def plot_losses(record: ParityRecord) -> Figure | None:
    """Return the training of both frameworks update by update, a column for each model.

    Above the losses, below how far losses and weights part. None if the record has no such curves.
    """
    optimizer, ranks = record.settings.optimizers[0], record.settings.np[0]
    of_model = {
        model: [
            curve
            for curve in record.curves
            if curve.model == model
            and curve.optimizer == optimizer
            and _frameworks(curve) == ("keras", "torch")
            and curve.between[1].endswith(f"np {ranks}")
        ]
        for model in record.settings.models
    }
    of_model = {model: curves for model, curves in of_model.items() if curves}
    if not of_model:
        return None
    figure, axes = _grid(3, len(of_model), height=7.0)
    for column, (model, curves) in enumerate(of_model.items()):
        _draw_losses(axes[0, column], model, curves)
        for curve in curves:
            ours, reference = (np.array(losses) for losses in curve.losses)
            style = DTYPE_STYLES[curve.dtype, curve.exchanged]
            _draw_difference(axes[1, column], np.abs(ours - reference) / np.abs(reference), style)
            _draw_difference(axes[2, column], np.array(curve.weights_difference), style)
        _draw_limit(axes[2, column], _limit(record, curves, exchanged=True) or _limit(record, curves))
    _share_rows(axes[1:])
    for ax, text in zip(axes[:, 0], ("loss of the update", "losses: difference", "weights: difference"), strict=True):
        ax.set_ylabel(text)
    legend_below(figure, ncols=6)
    figure.suptitle(
        f"Both frameworks, update by update ({optimizer}, np {ranks}, dropout off); no point: no difference"
    )
    return figure


def plot_ranks(record: ParityRecord) -> Figure | None:
    """Return how far the weights of several ranks part from those of one; None if only one number of ranks ran."""
    curves = [curve for curve in record.curves if len(set(_frameworks(curve))) == 1 and curve.weights_difference]
    models = [model for model in record.settings.models if any(curve.model == model for curve in curves)]
    if not models:
        return None
    numbers = sorted({curve.between[0].split()[-1] for curve in curves}, key=int)
    figure, axes = _grid(2, len(models), height=5.0)
    for row, dtype in enumerate(("float32", "float64")):
        for column, model in enumerate(models):
            ax = axes[row, column]
            chosen = [curve for curve in curves if (curve.model, curve.dtype) == (model, dtype)]
            for curve in chosen:
                framework, number = curve.between[0].split()[0], curve.between[0].split()[-1]
                style = {
                    "color": STYLES[framework]["color"],
                    "linestyle": ("-", "--", "-.", ":")[numbers.index(number) % 4],
                    "label": f"{framework_label(framework)}, np {number}",
                }
                _draw_difference(ax, np.array(curve.weights_difference), style)
            _draw_limit(ax, _limit(record, chosen), label="limit")
            if row == 0:
                ax.set_title(model)
        axes[row, 0].set_ylabel(f"{dtype} weights: difference")
    _share_rows(axes)
    legend_below(figure, ncols=6)
    base = curves[0].between[1].split()[-1]
    figure.suptitle(f"Several ranks against np {base}, the same global batch ({curves[0].optimizer}; relative)")
    return figure


def _frameworks(curve: Curve) -> tuple[str, str]:
    return curve.between[0].split()[0], curve.between[1].split()[0]


def _limit(record: ParityRecord, curves: Sequence[Curve], *, exchanged: bool = False) -> float | None:
    """Return how far the weights of these curves may be apart after all updates; None if that is not judged."""
    for curve in (curve for curve in curves if curve.exchanged == exchanged):
        for one in record.comparisons:
            same = (one.model, one.optimizer, one.between, one.dtype) == (
                curve.model, curve.optimizer, curve.between, curve.dtype,
            )  # fmt: skip
            if same and one.tolerance is not None and one.what != "1 update":
                return one.tolerance
    return None


def _grid(rows: int, columns: int, *, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(max(NARROWEST_INCHES, COLUMN_INCHES * columns + 1), height))
    axes = figure.subplots(rows, columns, squeeze=False, sharex="col")
    for ax in axes[-1]:
        ax.set_xlabel("update")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _share_rows(axes: Any) -> None:
    """Give all differences of a row one scale."""
    for row in axes:
        limits = np.array([ax.get_ylim() for ax in row])
        for column, ax in enumerate(row):
            ax.set_ylim(limits[:, 0].min(), limits[:, 1].max())
            ax.tick_params(labelleft=column == 0)


def _draw_losses(ax: Axes, model: str, curves: list[Curve]) -> None:
    free = [one for one in curves if not one.exchanged]
    curve = next((one for one in free if one.dtype == "float32"), curves[0])
    updates = np.arange(1, len(curve.losses[0]) + 1)
    # The reference is drawn broad and below: two equal curves would hide each other.
    for framework, losses, width, alpha in (("torch", curve.losses[1], 3.5, 0.5), ("keras", curve.losses[0], 1.2, 1.0)):
        ax.plot(updates, losses, linewidth=width, alpha=alpha, **STYLES[framework])
    parts = any(one.exchanged for one in curves)
    ax.set_title(f"{model} ({curve.dtype}{', free: not judged' if parts else ''})")


def _draw_difference(ax: Axes, difference: np.ndarray, style: dict[str, Any]) -> None:
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:.0e}")  # matplotlib's own is a formula, which plots do not show
    ax.yaxis.set_minor_formatter(NullFormatter())
    shown = np.where(difference > 0, difference, np.nan)  # zero has no place on a logarithmic axis
    ax.plot(np.arange(1, len(shown) + 1), shown, linewidth=1.2, markersize=4, **style)


def _draw_limit(ax: Axes, limit: float | None, *, label: str = LIMIT_STYLE["label"]) -> None:
    if limit is not None:
        ax.axhline(limit, **LIMIT_STYLE | {"label": label})
