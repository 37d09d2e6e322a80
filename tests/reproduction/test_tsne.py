"""Figures of sentence pairs by t-SNE."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure

from multicse.evaluation.task import encode_once
from multicse.evaluation.tasks.sts import Pairs, PairTask
from multicse.reproduction.figures import extreme_pairs

N = 12


class Given:
    """Encoder of "a0", "b0", ...: pairs are nearly equal in the second half, and unrelated in the first half."""

    def __init__(self, spread: float, norm: float) -> None:
        rng = np.random.default_rng(0)
        a, b = spread * rng.normal(size=(2, N, 8)) + 1
        b[N // 2 :] = a[N // 2 :] + 0.01 * spread * rng.normal(size=(N // 2, 8))
        self.vectors = {f"{side}{i}": vectors[i] for side, vectors in (("a", norm * a), ("b", b)) for i in range(N)}

    def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
        return np.stack([self.vectors[item] for item in items])


def drawn(spread: float, seed: int = 0, norm: float = 1.0) -> Figure:
    first, second = (tuple(f"{side}{i}" for i in range(N)) for side in "ab")
    task = PairTask("given", Pairs(first, second, tuple(5.0 * i / N for i in range(N)), ("all",) * N))
    return extreme_pairs(encode_once([task], Given(spread, norm)), task, seed)


def lines(figure: Figure) -> list[np.ndarray]:
    """Return both ends of the lines of positive and of negative pairs, (N, 2, 2) each."""
    return [np.asarray(c.get_segments()) for c in figure.axes[0].collections if isinstance(c, LineCollection)]


def test_pairs_are_joined() -> None:
    figure = drawn(3)
    joined = lines(figure)
    assert [len(ends) for ends in joined] == [6, 6]
    scattered = [np.asarray(c.get_offsets()) for c in figure.axes[0].collections if isinstance(c, PathCollection)]
    for ends, points in zip(joined, scattered, strict=True):
        np.testing.assert_allclose(ends.reshape(-1, 2), points)
    lengths = [np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1).mean() for ends in joined]
    assert lengths[0] < 0.5 * lengths[1]
    legend = figure.axes[0].get_legend()
    assert legend is not None and [t.get_text() for t in legend.get_texts()] == ["positive pairs", "negative pairs"]
    np.testing.assert_array_equal(lines(drawn(3))[0], joined[0])
    np.testing.assert_array_equal(lines(drawn(3, norm=4.0))[0], joined[0])  # exact for powers of two
    assert not np.allclose(lines(drawn(3, seed=1))[0], joined[0])
    with pytest.raises(ValueError, match="collapsed"):
        drawn(0)
