"""Figures of scores: curves over layers or over training, and where models of pairs stand in alignment and uniformity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from multicse.evaluation.figures.basic import COLOURS, MARKERS, finite, legend, new_figure

ITEMS = {"image_uniformity": "image", "audio_uniformity": "sound"}

Run = Mapping[str, Any]  # what `PairedGeometryTask` gives: alignment, text_uniformity, image_uniformity or audio_uniformity


def layer_curves(
    scores: Mapping[str, Sequence[float]],
    references: Mapping[str, float] | None = None,
    ylabel: str = "Spearman x 100",
) -> Figure:
    """Score of every layer, a curve a pooling: name -> scores (L + 1,), the first of the embedding layer.

    `references` are drawn as horizontal lines: what a trained model or another baseline has. (SG-BERT, Figure 1.)
    """
    curves = {name: dict(enumerate(values)) for name, values in scores.items()}
    return learning_curves(curves, "layer (0: embeddings)", ylabel, references)


def learning_curves(
    curves: Mapping[str, Mapping[int, float]], xlabel: str, ylabel: str, references: Mapping[str, float] | None = None
) -> Figure:
    """Scores over training, a curve a model: name -> step or epoch -> score. (GCLSR, Figure 4.)

    `references` are drawn as horizontal lines.
    """
    references = references or {}
    if len(curves) + len(references) > len(COLOURS):
        raise ValueError(f"at most {len(COLOURS)} curves and lines can be told apart by colour")
    figure = new_figure()
    axes = figure.add_subplot()
    for i, (name, curve) in enumerate(curves.items()):
        axes.plot(list(curve), finite(name, list(curve.values())), color=COLOURS[i], marker=MARKERS[i], label=name)
    for i, (name, value) in enumerate(references.items(), len(curves)):
        axes.axhline(float(finite(name, [value])[0]), color=COLOURS[i], linestyle="--", label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel=xlabel, ylabel=ylabel)
    legend(axes)
    return figure


def alignment_text_uniformity(models: Mapping[str, Sequence[Run]]) -> Figure:
    """Cross-modal alignment against uniformity of the captions (Zhao et al. 2023, Figure 2): model -> its runs, one a seed.

    A run is the metrics of `geometry.PairedGeometryTask`. Runs of a model have one colour; of several the mean is marked
    large. Both are better when lower. Trap: a collapsed model is perfectly aligned.

    Raises ValueError for more models than colours and markers tell apart, and numbers that are not finite.
    """
    return _scatter(models, "text_uniformity", "alignment", "text uniformity", "cross-modal alignment")


def text_item_uniformity(models: Mapping[str, Sequence[Run]]) -> Figure:
    """Uniformity of the pictures or sounds against that of the captions (Zhao et al. 2023, Figure 3); see
    `alignment_text_uniformity`. On the diagonal both kinds fill the sphere alike."""
    first = next(iter(models.values()))[0]
    metric = next(metric for metric in ITEMS if metric in first)
    figure = _scatter(models, "text_uniformity", metric, "text uniformity", f"{ITEMS[metric]} uniformity")
    (axes,) = figure.axes
    axes.axline((-1, -1), slope=1, color="0.8", linewidth=1, zorder=0)
    return figure


def _scatter(models: Mapping[str, Sequence[Run]], x: str, y: str, xlabel: str, ylabel: str) -> Figure:
    if len(models) > len(COLOURS) * len(MARKERS):
        raise ValueError(f"{len(models)} models; at most {len(COLOURS) * len(MARKERS)} can be told apart, draw a choice")
    figure = new_figure()
    axes = figure.add_subplot()
    for i, (name, runs) in enumerate(models.items()):
        places = finite(name, [[run[x], run[y]] for run in runs], shape=(None, 2))
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]
        if len(runs) > 1:
            axes.scatter(places[:, 0], places[:, 1], s=18, alpha=0.5, linewidths=0, color=colour, marker=marker)
        mean = places.mean(0)
        axes.scatter(mean[0], mean[1], s=70, color=colour, marker=marker, edgecolors="black", label=name, zorder=3)
    axes.set(xlabel=f"{xlabel} (lower: spread more evenly)", ylabel=f"{ylabel} (lower is better)")
    axes.margins(0.15)
    legend(axes)
    return figure
