"""Figures of vectors: pairs in a t-SNE plane, and where vectors lie on the circle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from multicse.evaluation.figures.basic import COLOURS, MARKERS, finite, legend, new_figure
from multicse.evaluation.task import unit

TURN = 2 * np.pi


def pairs_tsne(vectors_a: np.ndarray, vectors_b: np.ndarray, positive: np.ndarray, seed: int = 0) -> Figure:
    """Sentence pairs in a t-SNE plane, each joined by a line: vectors a, b (N, d), positive (N,) booleans.

    Vectors are brought to unit length, zero vectors stay. The colour of a pair is its cosine, its marker whether it is
    positive. SG-BERT's Figure 5 has 20 pairs of STS-B dev rated 5 and 20 rated 0. Trap: lengths of lines in such a plane
    are no distances, which the colours are, and another seed gives another plane.
    """
    from sklearn.manifold import TSNE

    a = unit(finite("vectors_a", vectors_a, shape=(None, None)))
    b = unit(finite("vectors_b", vectors_b, shape=(None, None)))
    mask = np.asarray(positive)
    if len(a) < 2:
        raise ValueError("t-SNE places points by their neighbours; give at least 2 pairs")
    both = np.concatenate([a, b])
    if np.ptp(both, axis=0).max() == 0:
        raise ValueError("all vectors are equal, so there is nothing to place; the encoder has collapsed")
    perplexity = min(30.0, (len(both) - 1) / 3)  # sklearn wants it below the number of points
    plane = TSNE(perplexity=perplexity, init="random", random_state=seed).fit_transform(both)
    ends = np.stack([plane[: len(a)], plane[len(a) :]], axis=1)  # (N, end, xy)
    cosines = (a * b).sum(axis=1)
    colour = ScalarMappable(Normalize(cosines.min(), cosines.max()), "viridis")
    figure = new_figure()
    axes = figure.add_subplot()
    for i, (name, chosen) in enumerate((("positive pairs", mask), ("negative pairs", ~mask))):
        points, colours = ends[chosen], colour.to_rgba(cosines[chosen])
        axes.add_collection(LineCollection(list(points), colors=colours, linewidths=1))
        x, y = points.reshape(-1, 2).T
        axes.scatter(x, y, color=np.repeat(colours, 2, axis=0), marker=MARKERS[i], s=18, label=name)
    figure.colorbar(colour, ax=axes, label="cosine of the pair")
    axes.set(xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")
    legend(axes)
    return figure


def angle_kde(
    vectors: np.ndarray, labels: Sequence[str] | np.ndarray | None = None, tokens: np.ndarray | None = None
) -> Figure:
    """Vectors (N, d) on the circle: density in the plane, density of angles, distances within a class (labels (N,)).

    MoCoUTRL's Figure 2: linear kernel PCA to 2 dimensions, unit length there, Gaussian density estimates; an angle is
    arctan2(y, x), and the density of angles is closed at ±pi. With `tokens` (N, k, d), states of k tokens of each text,
    these are the points, as in the paper. Distances are those of the vectors in all their dimensions at unit length,
    10 bins over 0 to 2; without labels of all pairs. Trap: two dimensions keep little of hundreds, so compare `alignment`
    and `uniformity` by their numbers.
    """
    from scipy.spatial.distance import pdist

    x = finite("vectors", vectors, shape=(None, None))
    several = x[:, None] if tokens is None else finite("tokens", tokens, shape=(len(x), None, None))
    names = np.full(len(x), "all") if labels is None else np.asarray(labels, dtype=str)
    classes = list(dict.fromkeys(names.tolist()))
    if len(classes) > len(COLOURS):
        raise ValueError(f"{len(classes)} classes; at most {len(COLOURS)} can be told apart by colour, draw some of them")
    plane = on_circle(several.reshape(-1, several.shape[-1])).reshape(*several.shape[:2], 2)
    figure = new_figure(13, 4.2)
    density, angles, distances = figure.subplots(1, 3)
    _plane_density(density, plane.reshape(-1, 2))
    directions = unit(x)
    counts = np.zeros(10)
    for i, name in enumerate(classes):
        chosen = names == name
        points = plane[chosen].reshape(-1, 2)
        density.scatter(*points.T, s=6, color=COLOURS[i], marker=MARKERS[i], linewidths=0)
        _angle_density(angles, np.arctan2(points[:, 1], points[:, 0]), name, i)
        counts += np.histogram(np.minimum(pdist(directions[chosen]), 2), len(counts), (0, 2))[0]
    distances.stairs(counts, np.linspace(0, 2, len(counts) + 1), fill=True, color=COLOURS[0], edgecolor="white")
    density.set(xlabel="first component (unit length)", ylabel="second component (unit length)", aspect="equal")
    angles.set(xlabel="angle (radians)", ylabel="density (1 / radian)", xlim=(-np.pi, np.pi), ylim=(0, None))
    angles.set_xticks([-np.pi, -np.pi / 2, 0, np.pi / 2, np.pi], ["-π", "-π/2", "0", "π/2", "π"])
    distances.set(xlabel="distance of two vectors" + " of a class" * (len(classes) > 1), ylabel="pairs", xlim=(0, 2))
    if labels is not None:
        legend(angles)
    return figure


def on_circle(x: np.ndarray) -> np.ndarray:
    """(N, d) -> unit vectors (N, 2) along the two components of most variance (the linear kernel's PCA is PCA)."""
    from sklearn.decomposition import PCA

    if len(x) < 3 or x.shape[1] < 2:
        raise ValueError(f"a plane needs at least 3 vectors of at least 2 dimensions, got {x.shape}")
    varies = np.ptp(x, axis=0).max() > 0
    plane = PCA(2, random_state=0).fit_transform(x) if varies else np.zeros((len(x), 2))
    if np.linalg.matrix_rank(plane) < 2:
        raise ValueError("the vectors lie on one line or point; the encoder has collapsed, and no plane can be drawn")
    return unit(plane)


def _plane_density(axes: Axes, plane: np.ndarray) -> None:
    from scipy.stats import gaussian_kde

    ticks = np.linspace(-1.3, 1.3, 100)
    grid = np.stack(np.meshgrid(ticks, ticks))
    values = gaussian_kde(plane.T)(grid.reshape(2, -1)).reshape(grid.shape[1:])
    image = axes.pcolormesh(ticks, ticks, values, cmap="Greys", shading="gouraud", rasterized=True)
    axes.get_figure(root=True).colorbar(image, ax=axes, label="density")  # type: ignore[union-attr]  # it has one


def _angle_density(axes: Axes, theta: np.ndarray, name: str, i: int) -> None:
    from scipy.stats import gaussian_kde

    if len(theta) < 2 or np.ptp(theta) == 0:
        axes.plot([], [], color=COLOURS[i], label=f"{name} (too few for a density)")
        return
    estimate = gaussian_kde(theta)
    places = np.linspace(-np.pi, np.pi, 361)
    density = sum(estimate(places + shift) for shift in (-TURN, 0, TURN))  # what runs over one end enters at the other
    axes.plot(places, density, color=COLOURS[i], label=name)
