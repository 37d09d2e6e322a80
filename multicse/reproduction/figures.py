"""Figures of models: curves, bars, weights of words, scatter plots of two metrics, and rated pairs by t-SNE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from multicse.evaluation.figures.basic import COLOURS, MARKERS, finite, legend, new_figure
from multicse.evaluation.task import Encoded, unit
from multicse.evaluation.tasks.sts import PairTask

DRAWN_PAIRS = 20
"""Number of pairs of each kind in a t-SNE figure (SG-BERT, Figure 5)."""


def curves(scores: Mapping[str, Mapping[str, float]], xlabel: str, ylabel: str) -> Figure:
    """Draw a curve per name (SG-BERT, Figure 1; GCLSR, Figure 4).

    Args:
        scores: Scores by name of the curve, and by layer, epoch or dataset.
        xlabel: Label of the x axis.
        ylabel: Label of the y axis.
    """
    if len(scores) > len(COLOURS):
        raise ValueError(f"{len(scores)} curves; at most {len(COLOURS)} have distinct colours")
    figure = new_figure()
    axes = figure.add_subplot()
    for i, (name, curve) in enumerate(scores.items()):
        axes.plot(list(curve), finite(name, list(curve.values())), color=COLOURS[i], marker=MARKERS[i], label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    legend(axes)
    return figure


def bars(scores: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw a bar per name and group, from scores by name and group (SG-BERT, Figure 4)."""
    figure = new_figure()
    axes = figure.add_subplot()
    width = 0.8 / len(scores)
    for i, (name, groups) in enumerate(scores.items()):
        axes.bar(np.arange(len(groups)) + width * i, list(groups.values()), width, color=COLOURS[i], label=name)
        axes.set_xticks(np.arange(len(groups)) + width * (len(scores) - 1) / 2, list(groups))
    axes.set(ylabel="score")
    legend(axes)
    return figure


def weights(scores: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw a heat map of weights by name and word; each row is divided by its largest weight (GCLSR, Figure 3)."""
    rows = finite("scores", [list(row.values()) for row in scores.values()], shape=(None, None))
    figure = new_figure(8, 1.8 + 0.4 * len(rows))
    axes = figure.add_subplot()
    image = axes.imshow(rows / np.maximum(np.abs(rows).max(1, keepdims=True), 1e-9), cmap="cividis", aspect="auto")
    axes.set_xticks(range(rows.shape[1]), list(next(iter(scores.values()))), rotation=45)
    axes.set_yticks(range(len(rows)), list(scores))
    figure.colorbar(image, label="share of the largest")
    return figure


def scatter(models: Mapping[str, Sequence[tuple[float, float]]], xlabel: str, ylabel: str) -> Figure:
    """Draw a scatter plot of models by two metrics (Zhao et al. 2023, Figures 2 and 3).

    Runs of a model share a colour, and a large marker shows their mean. Note that a collapsed model is perfectly aligned.

    Args:
        models: Two metrics per run, by model.
        xlabel: Name of the first metric.
        ylabel: Name of the second metric.
    """
    if len(models) > (most := len(COLOURS) * len(MARKERS)):
        raise ValueError(f"{len(models)} models; at most {most} have distinct markers. Draw fewer models")
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


def extreme_pairs(encoded: Encoded, task: PairTask, seed: int = 0) -> Figure:
    """Draw the 20 pairs with the highest ratings and the 20 with the lowest in a t-SNE plane; fewer of a small set.

    A line connects the sentences of a pair, and its colour is their cosine. Note that the lengths of lines are not
    distances, and that the plane depends on the seed.

    Args:
        encoded: Embeddings of the sentences of the task.
        task: Rated pairs.
        seed: Seed of t-SNE, and of the choice among pairs with equal ratings.

    Raises:
        ValueError: If all vectors are equal.

    References:
        SG-BERT, Figure 5.
    """
    from sklearn.manifold import TSNE

    ties = np.random.default_rng(seed).permutation(len(task.gold))  # random choice among equal ratings
    order = ties[np.argsort(task.gold[ties], kind="stable")]
    size = min(DRAWN_PAIRS, len(order) // 2)
    rows = np.concatenate([order[len(order) - size :], order[:size]])
    sides = (encoded.encode([side[i] for i in rows]) for side in (task.pairs.first, task.pairs.second))
    a, b = (unit(finite("vectors", vectors, shape=(None, None))) for vectors in sides)
    both = np.concatenate([a, b])
    if np.ptp(both, axis=0).max() == 0:
        raise ValueError("all vectors are equal, so t-SNE is not possible; the encoder has collapsed")
    perplexity = min(30.0, (len(both) - 1) / 3)  # sklearn requires a perplexity below the number of points
    plane = TSNE(perplexity=perplexity, init="random", random_state=seed).fit_transform(both)
    ends = np.stack([plane[: len(a)], plane[len(a) :]], axis=1)  # (N, end, xy)
    cosines = (a * b).sum(axis=1)
    colour = ScalarMappable(Normalize(cosines.min(), cosines.max()), "viridis")
    figure = new_figure()
    axes = figure.add_subplot()
    for i, (name, chosen) in enumerate((("positive pairs", slice(size)), ("negative pairs", slice(size, None)))):
        points, colours = ends[chosen], colour.to_rgba(cosines[chosen])
        axes.add_collection(LineCollection(list(points), colors=colours, linewidths=1))
        x, y = points.reshape(-1, 2).T
        axes.scatter(x, y, color=np.repeat(colours, 2, axis=0), marker=MARKERS[i], s=18, label=name)
    figure.colorbar(colour, ax=axes, label="cosine of the pair")
    axes.set(xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")
    legend(axes)
    return figure
