"""Figures of sentence pairs by t-SNE."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure

from multicse.reproduction.figures import pairs_tsne


def pairs(n: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pairs of which the first half is nearly equal and the second half unrelated."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, n, 8))
    positive = np.arange(n) < n // 2
    b[positive] = a[positive] + 0.01 * rng.normal(size=(n // 2, 8))
    return a, b, positive


def lines(figure: Figure) -> list[np.ndarray]:
    """Return both ends of the lines of positive and of negative pairs, (N, 2, 2) each."""
    return [np.asarray(c.get_segments()) for c in figure.axes[0].collections if isinstance(c, LineCollection)]


def test_pairs_are_joined() -> None:
    a, b, positive = pairs()
    figure = pairs_tsne(3 * a, b, positive)  # norms have no effect
    joined = lines(figure)
    assert [len(ends) for ends in joined] == [6, 6]
    scattered = [np.asarray(c.get_offsets()) for c in figure.axes[0].collections if isinstance(c, PathCollection)]
    for ends, points in zip(joined, scattered, strict=True):
        np.testing.assert_allclose(ends.reshape(-1, 2), points)
    lengths = [np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1).mean() for ends in joined]
    assert lengths[0] < 0.5 * lengths[1]
    legend = figure.axes[0].get_legend()
    assert legend is not None and [t.get_text() for t in legend.get_texts()] == ["positive pairs", "negative pairs"]
    assert "t-SNE" in figure.axes[0].get_xlabel()
    np.testing.assert_array_equal(lines(pairs_tsne(3 * a, b, positive))[0], joined[0])
    assert not np.allclose(lines(pairs_tsne(a, b, positive, seed=1))[0], joined[0])


def test_collapsed_vectors_cannot_be_drawn() -> None:
    a, b, positive = pairs()
    with pytest.raises(ValueError, match="collapsed"):
        pairs_tsne(0 * a + 1, 0 * b + 1, positive)
