"""Figures of the scores of models: curves over layers, epochs or sets, and models in a plane of two metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from multicse.evaluation.figures.basic import COLOURS, MARKERS, finite, legend, new_figure


def curves(scores: Mapping[str, Mapping[str, float]], xlabel: str, ylabel: str) -> Figure:
    """Draw a curve for each name: name -> layer, epoch or set -> score. (SG-BERT, Figure 1; GCLSR, Figure 4.)

    Raises ValueError for more curves than colours, and scores that are not finite.
    """
    if len(scores) > len(COLOURS):
        raise ValueError(f"at most {len(COLOURS)} curves can be told apart by colour")
    figure = new_figure()
    axes = figure.add_subplot()
    for i, (name, curve) in enumerate(scores.items()):
        axes.plot(list(curve), finite(name, list(curve.values())), color=COLOURS[i], marker=MARKERS[i], label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    legend(axes)
    return figure


def scatter(models: Mapping[str, Sequence[tuple[float, float]]], xlabel: str, ylabel: str) -> Figure:
    """Draw models in a plane: model -> two metrics of each of its runs. (Zhao et al. 2023, Figures 2 and 3.)

    Runs of a model have one colour; of several the mean is marked large. Trap: a collapsed model is perfectly aligned.

    Raises ValueError for more models than colours and markers tell apart, and numbers that are not finite.
    """
    if len(models) > len(COLOURS) * len(MARKERS):
        raise ValueError(f"{len(models)} models; at most {len(COLOURS) * len(MARKERS)} can be told apart, draw a choice")
    figure = new_figure()
    axes = figure.add_subplot()
    for i, (name, runs) in enumerate(models.items()):
        places = finite(name, list(runs), shape=(None, 2))
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]
        if len(runs) > 1:
            axes.scatter(places[:, 0], places[:, 1], s=18, alpha=0.5, linewidths=0, color=colour, marker=marker)
        mean = places.mean(0)
        axes.scatter(mean[0], mean[1], s=70, color=colour, marker=marker, edgecolors="black", label=name, zorder=3)
    axes.set(xlabel=f"{xlabel} (lower is better)", ylabel=f"{ylabel} (lower is better)")
    axes.margins(0.15)
    legend(axes)
    return figure
