"""Figures of one model, by the names of `Table.figure`, and of the tuning of a table.

Figures of a model take it (as in `evaluate.py --model`), the table and the folder of evaluation data, and return a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicse.data.word_vectors import open_vectors
from multicse.evaluation.encoders.encoder import FolderEncoder, on_device
from multicse.evaluation.figures.basic import COLOURS, legend, new_figure
from multicse.evaluation.load import load_model, parse
from multicse.evaluation.task import Encoder, embed, encode_once, unit
from multicse.evaluation.tasks.classification import read_labelled
from multicse.reproduction.figures import extreme_pairs
from multicse.reproduction.tables.measures import AUGMENTATIONS, pair_task, seeded
from multicse.reproduction.tables.protocol import by_rate, winner
from multicse.reproduction.tables.table import Table

DRAWN_TOKENS = 5
"""Number of tokens per text (MoCoUTRL, Figure 2)."""


def pairs(model: str, table: Table, data: Path) -> Figure:
    """Draw `extreme_pairs` of STS-B's development set (SG-BERT, Figures 5 and 6)."""
    task = pair_task("stsb-dev", data)
    return extreme_pairs(encode_once([task], load_model(model)), task)


def augmentations(model: str, table: Table, data: Path) -> Figure:
    """Draw the first vector of a file of word vectors with each augmentation (GCLSR, Figure 2)."""
    word = torch.from_numpy(np.array(open_vectors(parse(model).place).vectors[:1]))
    figure = new_figure(8, 1.6 * len(AUGMENTATIONS))
    panels = figure.subplots(len(AUGMENTATIONS), sharex=True)
    for axes, (name, augment) in zip(panels, AUGMENTATIONS.items(), strict=True):
        axes.plot(word[0], color=COLOURS[6], linewidth=0.8, label="word")
        axes.plot(augment(word, seeded())[0], color=COLOURS[3], linewidth=0.8, label="augmented")
        axes.set_title(name)
    panels[-1].set_xlabel("component")
    legend(panels[0])
    return figure


def circle(model: str, table: Table, data: Path) -> Figure:
    """Draw distances within classes, and random tokens in a plane with the density of their angles (MoCoUTRL, Figure 2).

    The texts are the test set of the file in the first column. Distances are between unit vectors in all dimensions. PCA
    reduces five tokens per text to two dimensions. The tokens of all classes, and of four classes each, are drawn as points
    on a Gaussian density, and their angles as a von Mises-Fisher density.
    """
    from scipy.spatial.distance import pdist
    from sklearn.decomposition import PCA

    labelled, encoder = read_labelled(table.columns[0].partition(":")[2].partition("#")[0]), load_model(model)
    texts, classes = [row.text for row in labelled.parts["test"]], labelled.y["test"]
    vectors, tokens = unit(embed(encoder, texts)), token_states(encoder, texts)
    plane = PCA(2, random_state=0).fit_transform(tokens.reshape(-1, tokens.shape[-1])).reshape(len(texts), -1, 2)
    figure = new_figure(18, 6)
    panels = figure.subplots(2, 6)
    near = np.concatenate([np.minimum(pdist(vectors[classes == one]), 2) for one in np.unique(classes)])
    panels[0, 0].hist(near, 10, (0, 2), weights=np.full(len(near), 100 / len(near)), color=COLOURS[0], edgecolor="white")
    panels[0, 0].set(title="within a class", xlabel="distance of two vectors", ylabel="% of pairs")
    panels[1, 0].set_axis_off()
    shown = {"all": classes >= 0} | {name: classes == i for i, name in enumerate(labelled.classes[:4])}
    for (name, chosen), (upper, lower) in zip(shown.items(), panels[:, 1:].T, strict=False):
        _plane(upper, plane[chosen].reshape(-1, 2))
        upper.set(title=name, xlabel="first component", ylabel="second component")
        ticks, (x, y) = np.linspace(-np.pi, np.pi, 361), plane[chosen].reshape(-1, 2).T
        lower.plot(ticks, vmf_density(np.arctan2(y, x), ticks), color=COLOURS[0])
        lower.set(xlabel="angle (radians)", ylabel="density", ylim=(0, None))
    return figure


@torch.no_grad()
def token_states(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    """Return the last hidden states (N, 5, d) of five random tokens of each of N texts, drawn with replacement."""
    assert isinstance(encoder, FolderEncoder)
    rng = np.random.default_rng(0)
    drawn: list[np.ndarray] = []
    for start in range(0, len(texts), 64):  # the states of all tokens of all texts would be gigabytes
        part = list(texts[start : start + 64])
        features = encoder.model(on_device(encoder.tokenize(part), encoder.device))
        rows = zip(features["token_embeddings"], features["attention_mask"].bool(), strict=True)
        states = [states[mask] for states, mask in rows]
        drawn += [one[rng.integers(len(one), size=DRAWN_TOKENS)].float().cpu().numpy() for one in states]
    return np.stack(drawn)


def vmf_density(angles: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Estimate the density of angles on the circle as a mean of von Mises densities around them.

    The concentration is 1 / h^2, with h from Scott's rule for the circular standard deviation, at most 1.

    Args:
        angles: (N,) angles in radians.
        places: (M,) angles at which the density is evaluated.
    """
    from scipy.stats import circstd, vonmises

    width = min(1.0, circstd(angles)) * len(angles) ** -0.2
    return np.array([vonmises.pdf(place, 1 / width**2, loc=angles).mean() for place in places])


def _plane(axes: Axes, points: np.ndarray) -> None:
    """Draw points (N, 2) on their Gaussian density."""
    from scipy.stats import gaussian_kde

    x, y = (np.linspace(low, high, 60) for low, high in zip(points.min(0), points.max(0), strict=True))
    grid = np.stack(np.meshgrid(x, y))
    axes.pcolormesh(x, y, gaussian_kde(points.T)(grid.reshape(2, -1)).reshape(60, 60), cmap="Greys", rasterized=True)
    axes.scatter(points[:, 0], points[:, 1], s=3, color=COLOURS[0], linewidths=0)


def cells(tuning: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw a panel per row of a table: the score of every learning rate and tuning seed, and their means.

    Args:
        tuning: Cells by label of the row, see `reproduction/tables/protocol.py`.
    """
    figure = new_figure(8, 1.9 * -(-len(tuning) // 3))
    for place, (label, found) in enumerate(tuning.items()):
        axes = figure.add_subplot(-(-len(tuning) // 3), 3, place + 1)
        means = {factor: mean for factor, mean in by_rate(found).items() if np.isfinite(mean)}
        shown = [cell for cell in found if cell["factor"] in means]
        axes.scatter(
            [cell["factor"] for cell in shown], [cell["score"] for cell in shown], s=10, alpha=0.5, color=COLOURS[0]
        )
        axes.plot(list(means), list(means.values()), color=COLOURS[0])
        axes.axvline(winner(found), color="0.7", linewidth=0.8)
        axes.set(xscale="log", title=label)
        axes.set_xticks(list(means), [f"{factor:.2g}" for factor in means])
        axes.set_xticks([], minor=True)
        axes.title.set_fontsize(8)
    figure.supxlabel("factor on the recipe's learning rates")
    figure.supylabel("development task")
    return figure
