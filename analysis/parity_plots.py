"""Plots of `parity.json`: loss curves and their difference, and the drift of weights over ranks."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.plots import SETTINGS, STYLES
from common.parity import Curve, ParityRecord

NARROWEST = 7.5  # inches, for the title
FLOOR = 1e-17  # where no difference at all is drawn: a logarithm has no zero
DTYPE_STYLES: dict[tuple[str, bool], dict[str, Any]] = {
    ("float64", False): {"color": "#009E73", "linestyle": "-", "label": "float64"},
    ("float32", False): {"color": "#CC79A7", "linestyle": "-", "label": "float32"},
    ("float64", True): {"color": "#000000", "linestyle": ":", "label": "float64, each update from one state"},
}


def plot_losses(record: ParityRecord) -> Figure | None:
    """Return the loss of both frameworks update by update, a column for each model, and below how far they part.

    None if the record has no such curves.
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
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(max(NARROWEST, 2.6 * len(of_model) + 1.2), 5.4), layout="constrained")
        axes = figure.subplots(2, len(of_model), squeeze=False, sharex="col")
        for column, (model, curves) in enumerate(of_model.items()):
            _losses(axes[0, column], model, curves)
            _differences(axes[1, column], curves)
        for ax in axes[1, 1:]:
            ax.sharey(axes[1, 0])
            ax.tick_params(labelleft=False)
        axes[0, 0].set_ylabel("training loss of the update")
        axes[1, 0].set_ylabel("relative difference of the losses\n(none at all: 1e-17)")
        _legend_below(figure, [axes[0, 0], *axes[1, :]])
        figure.suptitle(
            f"The same training in both frameworks, update by update ({optimizer}, np {ranks}, "
            f"{record.settings.updates} updates, dropout off)"
        )
    return figure


def plot_ranks(record: ParityRecord) -> Figure | None:
    """Return how far the weights of several ranks part from those of one; None if only one number of ranks ran."""
    curves = [curve for curve in record.curves if len(set(_frameworks(curve))) == 1 and curve.weights_difference]
    models = [model for model in record.settings.models if any(curve.model == model for curve in curves)]
    if not models:
        return None
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(max(NARROWEST, 2.6 * len(models) + 1.2), 3.6), layout="constrained")
        axes = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        numbers = sorted({curve.between[0].split()[-1] for curve in curves}, key=int)
        for ax, model in zip(axes, models, strict=True):
            for curve in curves:
                if curve.model != model:
                    continue
                framework, number = curve.between[0].split()[0], curve.between[0].split()[-1]
                style = STYLES[framework]
                ax.semilogy(
                    np.arange(1, len(curve.weights_difference) + 1),
                    np.maximum(curve.weights_difference, FLOOR),
                    color=style["color"],
                    linestyle=style["linestyle"],
                    linewidth=0.8 + 0.8 * numbers.index(number),
                    alpha=1.0 if curve.dtype == "float32" else 0.55,
                    label=f"{style['label']}, np {number}",
                )
            ax.set_title(model)
            ax.set_xlabel("update")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0].set_ylabel("relative difference of the weights")
        _legend_below(figure, axes.tolist())
        figure.suptitle("Several ranks against one: float32 (above) drifts, float64 (below, pale) does not")
    return figure


def _frameworks(curve: Curve) -> tuple[str, str]:
    return curve.between[0].split()[0], curve.between[1].split()[0]


def _losses(ax: Axes, model: str, curves: list[Curve]) -> None:
    curve = next((one for one in curves if one.dtype == "float32" and not one.exchanged), curves[0])
    updates = np.arange(1, len(curve.losses[0]) + 1)
    # The reference is drawn broad and below: two equal curves would hide each other.
    for framework, losses, width, alpha in (("torch", curve.losses[1], 3.5, 0.5), ("keras", curve.losses[0], 1.2, 1.0)):
        ax.plot(updates, losses, linewidth=width, alpha=alpha, **STYLES[framework])
    ax.set_title(f"{model} ({curve.dtype})")


def _differences(ax: Axes, curves: list[Curve]) -> None:
    for curve in curves:
        ours, reference = (np.array(losses) for losses in curve.losses)
        updates = np.arange(1, len(ours) + 1)
        style = DTYPE_STYLES[curve.dtype, curve.exchanged]
        ax.semilogy(updates, np.maximum(np.abs(ours - reference) / np.abs(reference), FLOOR), **style)
    ax.set_xlabel("update")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend_below(figure: Figure, axes: list[Axes]) -> None:
    """One legend for all axes, each label once."""
    artists: dict[str, Artist] = {}
    for ax in axes:
        artists |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    figure.legend(list(artists.values()), list(artists), loc="outside lower center", ncols=len(artists))
