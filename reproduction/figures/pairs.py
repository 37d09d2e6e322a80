"""Figures of items with captions: where models stand in alignment and uniformity, and cosines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from multicse.evaluation.figures.basic import COLOURS, MARKERS, finite, legend, new_figure

MOST = 40  # items or captions in a matrix: more names cannot be read
NAME = 32  # characters of a name beside a matrix
ITEMS = {"image_uniformity": "image", "audio_uniformity": "sound"}

Run = Mapping[str, Any]  # what `PairedGeometryTask` gives: alignment, text_uniformity, image_uniformity or audio_uniformity


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


def similarity_matrix(cosines: np.ndarray, items: Sequence[str], captions: Sequence[str]) -> Figure:
    """Cosines (N, M) of N items, one a row, with M captions, in the order given; at most 40 of each.

    Where items and captions are pairs in one order, the diagonal is what retrieval should find. The first caption with the
    highest cosine of each row has a ring.

    Raises ValueError for more than 40, and cosines that are not finite.
    """
    matrix = finite("cosines", cosines, shape=(None, None))
    if max(matrix.shape) > MOST:
        raise ValueError(f"{matrix.shape} cosines; at most {MOST} items and captions can be drawn, leave some out")
    height = 2.5 + 0.18 * len(items)
    figure = new_figure(4.5 + 0.18 * len(captions), height)
    axes = figure.add_subplot()
    image = axes.imshow(matrix, cmap="viridis", aspect="auto", interpolation="nearest")
    axes.scatter(matrix.argmax(1), np.arange(len(matrix)), s=24, facecolors="none", edgecolors=COLOURS[3], linewidths=1.2)
    figure.colorbar(image, label="cosine similarity")
    axes.set_xticks(range(len(captions)), map(_shortened, captions), fontsize=7, parse_math=False, rotation=90)
    axes.set_yticks(range(len(items)), map(_shortened, items), fontsize=7, parse_math=False)
    axes.set(xlabel="captions", ylabel="items")
    # Small letters are a little wider at the resolution that a figure is saved in: names need room to grow.
    figure.set_layout_engine("constrained", w_pad=0.2, h_pad=0.2)
    return figure


def _shortened(name: str) -> str:
    return name if len(name) <= NAME else name[: NAME - 1] + "…"


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
