"""Scores as curves: of every layer, or over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from multicse.evaluation.figures.basic import COLOURS, MARKERS, finite, legend, new_figure


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
