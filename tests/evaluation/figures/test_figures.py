"""What the figures of scores show, and how figures are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex

from multicse.evaluation.figures.basic import (
    alignment_uniformity_figure,
    alignment_uniformity_scatter,
    save,
    similarity_by_gold_figure,
)

MODELS = {"BERT": (0.1, -1.0), "SimCSE": (0.2, -2.4), "a $ b": (0.19, -2.3)}


def offsets(axes: Axes) -> list[list[float]]:
    (points,) = (c for c in axes.collections if isinstance(c, PathCollection))
    return np.asarray(points.get_offsets()).tolist()


def test_alignment_uniformity_figure() -> None:
    axes = alignment_uniformity_figure([(0, 0.3, -1.0), (100, 0.25, -2.0), (200, 0.2, -2.5)]).axes[0]
    assert offsets(axes) == [[-1.0, 0.3], [-2.0, 0.25], [-2.5, 0.2]]
    assert {text.get_text() for text in axes.texts} == {"step 0", "step 200"}


def test_alignment_uniformity_scatter() -> None:
    figure = alignment_uniformity_scatter(MODELS, {"SimCSE": 76.0, "BERT": 31.4, "a $ b": 77.5})
    axes, bar = figure.axes
    assert offsets(axes) == [[-1.0, 0.1], [-2.4, 0.2], [-2.3, 0.19]]
    assert np.asarray(axes.collections[0].get_array()).tolist() == [31.4, 76.0, 77.5]
    assert [text.get_text() for text in axes.texts] == list(MODELS)
    assert "uniformity" in axes.get_xlabel() and bar.get_ylabel() == "average STS score"
    figure.draw_without_rendering()  # a $ in a name is no formula
    assert len(alignment_uniformity_scatter(MODELS).axes) == 1


def test_similarity_by_gold_figure() -> None:
    rng = np.random.default_rng(0)
    gold = np.concatenate([[0.0, 5.0], rng.uniform(0, 2, 98)])  # nothing between 2 and 4: bins may be empty
    similarities = gold / 5 + rng.normal(0, 0.01, 100)
    axes, other, _ = similarity_by_gold_figure({"a": similarities, "b": -similarities, "c": gold}, gold).axes
    assert [axes.get_title(), other.get_title()] == ["a", "b"] and axes.get_ylim() == other.get_ylim()
    np.testing.assert_allclose(offsets(other), np.stack([gold, -similarities], 1))
    np.testing.assert_allclose(offsets(axes), np.stack([gold, similarities], 1))
    medians = [np.asarray(line.get_ydata())[0] for line in axes.lines if to_hex(line.get_color()) == "#d55e00"]
    ranges = [(gold >= low) & (gold <= low + 1) for low in (0, 1, 4)]
    assert medians == pytest.approx([np.median(similarities[chosen]) for chosen in ranges])


def test_the_same_figure_is_the_same_bytes(tmp_path: Path) -> None:
    figure = alignment_uniformity_scatter(MODELS)
    png, svg = save(figure, tmp_path / "new", "scatter")
    assert (png, svg) == (tmp_path / "new" / "scatter.png", tmp_path / "new" / "scatter.svg")
    first = png.read_bytes(), svg.read_bytes()
    assert int.from_bytes(first[0][16:20], "big") == 6 * 150  # the width in a PNG's header
    assert b">SimCSE</text>" in first[1] and b"<dc:date>" not in first[1]
    for again in (figure, alignment_uniformity_scatter(MODELS)):
        save(again, tmp_path / "new", "scatter")
        assert (png.read_bytes(), svg.read_bytes()) == first
