"""Figures of scores as Matplotlib objects, without global state. Invalid input raises ValueError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Palette of Okabe and Ito without yellow: safe for colour-blind readers and visible on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
UNIFORMITY = "uniformity (lower: spread more evenly)"
ALIGNMENT = "alignment (lower: positives closer)"


def alignment_uniformity_figure(history: Sequence[tuple[int, float, float]]) -> Figure:
    """Draw alignment against uniformity during training (SimCSE, Figure 2).

    Args:
        history: (step, alignment, uniformity) of every evaluation; lower is better for both.
    """
    if not history:
        raise ValueError("history is empty: no evaluation was recorded")
    steps, align, uniform = (finite("history", column) for column in zip(*history, strict=True))
    figure = new_figure()
    axes = figure.add_subplot()
    axes.plot(uniform, align, color="0.7", linewidth=1, zorder=1)
    points = axes.scatter(uniform, align, c=steps, cmap="viridis", zorder=2)
    for i in {0, len(steps) - 1}:
        axes.annotate(f"step {steps[i]:.0f}", (uniform[i], align[i]), textcoords="offset points", xytext=(6, 6))
    figure.colorbar(points, label="step")
    axes.set(xlabel=UNIFORMITY, ylabel=ALIGNMENT)
    axes.margins(0.15)
    return figure


def alignment_uniformity_scatter(
    models: Mapping[str, tuple[float, float]], scores: Mapping[str, float] | None = None, label: str = "average STS score"
) -> Figure:
    """Draw alignment against uniformity of several models (SimCSE, Figure 3).

    Args:
        models: (alignment, uniformity) by name.
        scores: Scores by name, shown as colours.
        label: Label of the scores.
    """
    places = finite("models", list(models.values()), shape=(None, 2))
    figure = new_figure()
    axes = figure.add_subplot()
    if scores is None:
        axes.scatter(places[:, 1], places[:, 0], color=COLOURS[0])
    else:
        values = finite("scores", [scores[name] for name in models])
        figure.colorbar(axes.scatter(places[:, 1], places[:, 0], c=values, cmap="viridis"), label=label)
    for name, (align, uniform) in zip(models, places, strict=True):
        side = 1 if uniform <= places[:, 1].mean() else -1  # keeps names inside the axes
        ha = "left" if side > 0 else "right"
        axes.annotate(name, (uniform, align), (6 * side, 6), textcoords="offset points", ha=ha, parse_math=False)
    axes.set(xlabel=UNIFORMITY, ylabel=ALIGNMENT)
    axes.margins(0.2)
    return figure


def similarity_by_gold_figure(
    models: Mapping[str, np.ndarray], gold: np.ndarray, bins: int = 5, gold_is: str = "ratings"
) -> Figure:
    """Draw the cosine of every pair against its rating, with quartiles within equal ranges of the rating.

    Args:
        models: Cosines, (N,), by the title of their part of the figure.
        gold: Ratings, (N,).
        bins: Number of ranges.
        gold_is: What the ratings are, `PairTask.gold_is`.
    """
    gold, columns = finite("gold", gold), min(len(models), 4)
    rows = -(-len(models) // columns)
    figure = new_figure(6 if columns == 1 else 3.5 * columns, 4.5 if columns == 1 else 3.5 * rows)
    parts = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, (title, cosines) in zip(parts.flat, models.items(), strict=False):
        _similarity_by_gold(axes, finite("models", cosines), gold, bins)
        axes.set_title(title, parse_math=False)
    for axes in parts.flat[len(models) :]:
        axes.remove()
    if columns == 1:
        parts[0, 0].set(xlabel=gold_is, ylabel="cosine similarity")
    else:
        figure.supxlabel(gold_is)
        figure.supylabel("cosine similarity")
    return figure


def _similarity_by_gold(axes: Axes, similarities: np.ndarray, gold: np.ndarray, bins: int) -> None:
    axes.scatter(gold, similarities, s=6, alpha=0.25, linewidths=0, color=COLOURS[0])
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
        medianprops={"color": COLOURS[3]},
    )


# --------------------------------------------------------------------------------------------------------- shared parts


def save(figure: Figure, folder: str | Path, name: str) -> tuple[Path, Path]:
    """Write ``NAME.png`` (150 dpi) and ``NAME.svg`` (text as text), deterministically, and return their paths."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # otherwise every drawing moves the axes slightly
    png, svg = place / f"{name}.png", place / f"{name}.svg"
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "multicse"}):
        figure.savefig(png, dpi=150)
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def new_figure(width: float = 6, height: float = 4.5) -> Figure:
    """Create an empty figure with its own canvas; width and height are in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def legend(axes: Axes) -> None:
    """Add a legend without math parsing, so that names may contain ``$``."""
    for text in axes.legend(framealpha=0.9, edgecolor="none").get_texts():
        text.set_parse_math(False)


def finite(name: str, values: Any, shape: tuple[int | None, ...] = (None,)) -> np.ndarray:
    """Convert values to a float array; raise ValueError for another shape (None: any length but 0), NaN and infinity."""
    array = np.asarray(values, dtype=float)
    fits = array.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, array.shape, strict=False))
    if not fits or not array.size:
        wanted = ", ".join("N" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} must be ({wanted}) and not empty, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains {int((~np.isfinite(array)).sum())} values that are NaN or infinite; remove them")
    return array
