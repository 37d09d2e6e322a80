"""What the figures of items with captions show."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex

from evaluation.figures.pairs import (
    alignment_text_uniformity,
    similarity_matrix,
)


def run(alignment: float, text: float, item: float, modality: str = "image") -> dict[str, float]:
    return {"alignment": alignment, "text_uniformity": text, f"{modality}_uniformity": item, "modality_gap": 0.5}


MODELS = {
    "CLIP": [run(0.9, -3.0, -2.5), run(1.1, -3.2, -2.7)],
    "CyCLIP $s": [run(0.7, -3.5, -2.9)],
}


def clouds(axes: Axes) -> list[tuple[list[list[float]], str]]:
    """Points and colour of each collection."""
    found = [c for c in axes.collections if isinstance(c, PathCollection)]
    colours = [np.asarray(c.get_facecolor()) for c in found]
    return [
        (np.asarray(points.get_offsets()).round(6).tolist(), to_hex(tuple(colour[0])) if len(colour) else "none")
        for points, colour in zip(found, colours, strict=True)
    ]


def names(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_alignment_against_text_uniformity() -> None:
    figure = alignment_text_uniformity(MODELS)
    (axes,) = figure.axes
    (seeds, first), (mean, same), (single, other) = clouds(axes)
    assert seeds == [[-3.0, 0.9], [-3.2, 1.1]] and mean == [[-3.1, 1.0]] and single == [[-3.5, 0.7]]
    assert first == same != other
    assert names(axes) == list(MODELS)
    assert "text uniformity" in axes.get_xlabel() and "cross-modal alignment" in axes.get_ylabel()
    figure.draw_without_rendering()  # a $ in a name is no formula


def test_similarity_matrix() -> None:
    cosines = np.array([[0.9, 0.1, 0.2], [0.3, 0.2, 0.8]])
    long = "a very long caption that would take all the room there is"
    figure = similarity_matrix(cosines, ["$1", "two"], ["one", "$", long])
    axes, bar = figure.axes
    assert np.asarray(axes.images[0].get_array()).tolist() == cosines.tolist()
    assert clouds(axes)[0][0] == [[0, 0], [2, 1]]  # column and row of the best
    assert [text.get_text() for text in axes.get_yticklabels()] == ["$1", "two"]
    columns = [text.get_text() for text in axes.get_xticklabels()]
    assert columns[:2] == ["one", "$"] and columns[2].endswith("…") and len(columns[2]) == 32
    assert bar.get_ylabel() == "cosine similarity"
