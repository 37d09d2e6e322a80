"""Figures of scores, returned as Matplotlib objects; nothing is shown and no global state is touched.

Bad input is a ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe & Ito's palette without yellow: told apart by the colour-blind, and on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
UNIFORMITY = "uniformity (lower: spread more evenly)"
ALIGNMENT = "alignment (lower: positives closer)"


def alignment_uniformity_figure(history: Sequence[tuple[int, float, float]]) -> Figure:
    """Alignment against uniformity over training, one point an evaluation: (step, alignment, uniformity).

    Both are better when lower, so good training moves to the lower left. (SimCSE, Figure 2.)
    """
    if not history:
        raise ValueError("no evaluation was recorded, so there is nothing to draw: history is empty")
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
    """Several models, one point each: name -> (alignment, uniformity), coloured by name -> score. (SimCSE, Figure 3.)"""
    places = finite("models", list(models.values()), shape=(None, 2))
    figure = new_figure()
    axes = figure.add_subplot()
    if scores is None:
        axes.scatter(places[:, 1], places[:, 0], color=COLOURS[0])
    else:
        values = finite("scores", [scores[name] for name in models])
        figure.colorbar(axes.scatter(places[:, 1], places[:, 0], c=values, cmap="viridis"), label=label)
    for name, (align, uniform) in zip(models, places, strict=True):
        side = 1 if uniform <= places[:, 1].mean() else -1  # names stay inside
        ha = "left" if side > 0 else "right"
        axes.annotate(name, (uniform, align), (6 * side, 6), textcoords="offset points", ha=ha, parse_math=False)
    axes.set(xlabel=UNIFORMITY, ylabel=ALIGNMENT)
    axes.margins(0.2)
    return figure


def similarity_by_gold_figure(similarities: np.ndarray, gold: np.ndarray, bins: int = 5) -> Figure:
    """Cosine (N,) against human rating (N,): every pair, and the quartiles within equal ranges of the rating."""
    similarities, gold = finite("similarities", similarities), finite("gold", gold)
    figure = new_figure()
    axes = figure.add_subplot()
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
    axes.set(xlabel="human rating", ylabel="cosine similarity")
    return figure


# --------------------------------------------------------------------------------------------------------- shared parts


def save(figure: Figure, folder: str | Path, name: str) -> tuple[Path, Path]:
    """Write ``NAME.png`` (150 dpi) and ``NAME.svg`` (text as text); returns both paths, the folder is made.

    The same figure gives the same bytes: neither date nor random ids are written.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # else every further drawing would move the axes a little
    png, svg = place / f"{name}.png", place / f"{name}.svg"
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "multicse"}):
        figure.savefig(png, dpi=150)
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def new_figure(width: float = 6, height: float = 4.5) -> Figure:
    """An empty figure of a size in inches, on a canvas of its own."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def legend(axes: Axes) -> None:
    """A legend whose names are shown as they are, ``$`` included."""
    for text in axes.legend(framealpha=0.9, edgecolor="none").get_texts():
        text.set_parse_math(False)


def finite(name: str, values: Any, shape: tuple[int | None, ...] = (None,)) -> np.ndarray:
    """`values` as floats of a shape (None: any length but 0). Raises ValueError for another shape, NaN and infinity."""
    array = np.asarray(values, dtype=float)
    fits = array.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, array.shape, strict=False))
    if not fits or not array.size:
        wanted = ", ".join("N" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} must be ({wanted}) and not empty, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds {int((~np.isfinite(array)).sum())} values that are NaN or infinite; leave them out")
    return array
