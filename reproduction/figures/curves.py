"""Scores as curves, of every layer or over training, and the figures of words and word vectors of GCLSR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from multicse.evaluation.figures.basic import COLOURS, MARKERS, finite, legend, new_figure
from multicse.models.word_module import importance


def layer_curves(
    scores: Mapping[str, Sequence[float]],
    references: Mapping[str, float] | None = None,
    ylabel: str = "Spearman x 100",
) -> Figure:
    """Score of every layer, a curve a pooling: name -> scores (L + 1,), the first of the embedding layer.

    `references` are drawn as horizontal lines: what a trained model or another baseline has. (SG-BERT, Figure 1.)
    """
    curves = {name: dict(enumerate(values)) for name, values in scores.items()}
    return learning_curves(curves, "layer (0: embeddings)", ylabel, references)


def learning_curves(
    curves: Mapping[str, Mapping[int, float]], xlabel: str, ylabel: str, references: Mapping[str, float] | None = None
) -> Figure:
    """Scores over training, a curve a model: name -> step or epoch -> score. (GCLSR, Figure 4.)

    `references` are drawn as horizontal lines.
    """
    references = references or {}
    if len(curves) + len(references) > len(COLOURS):
        raise ValueError(f"at most {len(COLOURS)} curves and lines can be told apart by colour")
    figure = new_figure()
    axes = figure.add_subplot()
    for i, (name, curve) in enumerate(curves.items()):
        axes.plot(list(curve), finite(name, list(curve.values())), color=COLOURS[i], marker=MARKERS[i], label=name)
    for i, (name, value) in enumerate(references.items(), len(curves)):
        axes.axhline(float(finite(name, [value])[0]), color=COLOURS[i], linestyle="--", label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel=xlabel, ylabel=ylabel)
    legend(axes)
    return figure


def attention_importance(vectors: np.ndarray) -> np.ndarray:
    """What GCLSR's attention gives each word of a sentence, of their vectors (L, d); there is no padding."""
    words = torch.from_numpy(np.asarray(vectors, dtype=float))[None]
    return importance(words, torch.ones(words.shape[:2]), words.shape[1])[0].numpy()


def word_importance(words: Sequence[str], weights: Sequence[float]) -> Figure:
    """The weight of each word of a sentence as a bar, from above in the order of the words. (GCLSR, Figure 3.)"""
    figure = new_figure(6, 0.8 + 0.3 * len(words))
    axes = figure.add_subplot()
    axes.barh(range(len(words)), finite("weights", weights), color=COLOURS[0])
    axes.set_yticks(range(len(words)), words, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel("weight")
    return figure


def augmented_vector(word: np.ndarray, changed: Mapping[str, np.ndarray]) -> Figure:
    """A word's vector (d,), and what augmentations make of it, name -> (d,), a panel each. (GCLSR, Figure 2.)"""
    figure = new_figure(8, 1.6 * len(changed))
    panels = figure.subplots(len(changed), sharex=True, squeeze=False)[:, 0]
    for axes, (name, vector) in zip(panels, changed.items(), strict=True):
        axes.plot(finite("word", word), color=COLOURS[6], linewidth=0.8, label="word")
        axes.plot(finite(name, vector), color=COLOURS[3], linewidth=0.8, label="augmented")
        axes.set_title(name)
    panels[-1].set_xlabel("component")
    legend(panels[0])
    return figure
