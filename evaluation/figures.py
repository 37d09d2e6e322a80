"""Figures, returned as Matplotlib objects; nothing is shown and no global state is touched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def alignment_uniformity_figure(history: Sequence[tuple[int, float, float]]) -> Figure:
    """Alignment against uniformity over training, one point an evaluation: (step, alignment, uniformity).

    Both are better when lower, so good training moves to the lower left. (SimCSE, Figure 2.)
    """
    figure = _figure()
    axes = figure.add_subplot()
    if not history:
        raise ValueError("no evaluation was recorded, so there is nothing to draw: history is empty")
    steps, align, uniform = (np.asarray(column, dtype=float) for column in zip(*history, strict=True))
    axes.plot(uniform, align, color="0.7", linewidth=1, zorder=1)
    points = axes.scatter(uniform, align, c=steps, cmap="viridis", zorder=2)
    for i in {0, len(steps) - 1}:
        axes.annotate(f"step {steps[i]:.0f}", (uniform[i], align[i]), textcoords="offset points", xytext=(6, 6))
    figure.colorbar(points, label="step")
    axes.set(xlabel="uniformity (lower: spread more evenly)", ylabel="alignment (lower: positives closer)")
    axes.margins(0.15)
    return figure


def similarity_by_gold_figure(similarities: np.ndarray, gold: np.ndarray, bins: int = 5) -> Figure:
    """Cosine (N,) against human rating (N,): every pair, and the quartiles within equal ranges of the rating."""
    similarities, gold = np.asarray(similarities, dtype=float), np.asarray(gold, dtype=float)
    if similarities.shape != gold.shape or similarities.ndim != 1 or not len(gold):
        raise ValueError(f"similarities {similarities.shape} and gold {gold.shape} must be equally long, (N,), not empty")
    figure = _figure()
    axes = figure.add_subplot()
    axes.scatter(gold, similarities, s=6, alpha=0.25, linewidths=0)
    edges = np.linspace(gold.min(), gold.max(), bins + 1)
    which = np.clip(np.digitize(gold, edges) - 1, 0, bins - 1)
    used = [b for b in range(bins) if (which == b).any()]
    width = float(edges[1] - edges[0]) or 1.0
    axes.boxplot(
        [similarities[which == b] for b in used],
        positions=[float(edges[b] + edges[b + 1]) / 2 for b in used],
        widths=width * 0.5,
        manage_ticks=False,
        showfliers=False,
    )
    axes.set(xlabel="human rating", ylabel="cosine similarity")
    return figure


def _figure() -> Figure:
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
