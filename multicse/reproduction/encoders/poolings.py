"""Poolings of single papers: SBERT-WK, and the average of word vectors in GCLSR's released code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multicse.evaluation.encoders.encoder import Forward
from multicse.evaluation.encoders.word_vectors import WordVectors
from multicse.evaluation.task import EvaluationError
from multicse.reproduction.encoders.layer_poolings import States, depth_of, over_layers

PATTERN = r"wk(\d+)?(-released)?"
"""``wk`` uses the layers from 4, ``wk<k>`` from k; with the suffix ``-released``, as in the authors' code."""
WINDOW, START = 2, 4  # layers on either side, and the first layer that is used
POSITIONS, EMPTY = 64, "sickeningly"
"""Padded length of every sentence in words, and the word that replaces an empty sentence."""


def make(match: re.Match[str], model: Any) -> Forward:
    """Return the pooling of a name.

    Args:
        match: Match of `PATTERN`.
        model: SentenceTransformer that starts with a transformer.

    Raises:
        EvaluationError: If the model has too few layers.
    """
    start, released, depth = int(match[1] or START), match[2] is not None, depth_of(model)
    if start > depth - 2:
        raise EvaluationError(
            f"pooling {match[0]!r} needs at least three layers from layer {start}, but the last layer of the model is "
            f"{depth}; use wk0 for all layers"
        )
    return over_layers(model, lambda states, mask: wk(states, mask, start, released))


def wk(states: States, mask: Tensor, start: int, released: bool) -> Tensor:
    """Pool tokens by SBERT-WK: weighted over the layers of a token, then over the tokens of a sentence.

    A token vector is a weighted sum of its layers `start` to l. The weight of layer i is the mean of two weights, each
    normalised to sum 1 over the layers: the inverse of its mean cosine with the layers at most `WINDOW` away (alignment),
    and the norm of its component orthogonal to them, relative to its norm (novelty). Tokens are weighted by the variance of
    the cosines of adjacent layers. The last token ([SEP]) is excluded, as in the authors' code.

    Args:
        states: Hidden states of the layers 0 to l, each (B, T, d).
        mask: (B, T), attention mask.
        start: First layer that is used.
        released: Follow the authors' code where it differs: layers with fewer than `WINDOW` layers below them ignore these
            layers, and the alignment is the cosine with the projection on the span of the adjacent layers, divided by their
            number once more, which favours the first and last layers.

    Returns:
        (B, d) sentence embeddings.

    References:
        Wang and Kuo 2020, SBERT-WK.
    """
    keep = mask.bool().clone()
    places = torch.arange(keep.shape[1], device=keep.device).expand_as(keep)
    last = places.masked_fill(~keep, -1).amax(1)
    keep[torch.arange(len(keep), device=keep.device), last] = keep.sum(1) == 1  # a single token is kept
    sentence = keep.nonzero()[:, 0]
    layers = torch.stack([state[keep].float() for state in states[start:]], dim=1)  # (M, L, d): M tokens, L layers
    weights = _layer_weights(layers, released)
    tokens = torch.einsum("ml,mld->md", weights, layers)
    importance = torch.cosine_similarity(layers[:, 1:], layers[:, :-1], dim=2).var(1, unbiased=False)
    total = importance.new_zeros(len(keep)).index_add(0, sentence, importance)
    share = importance / total[sentence]
    return tokens.new_zeros(len(keep), tokens.shape[1]).index_add(0, sentence, share.unsqueeze(1) * tokens)


def _layer_weights(layers: Tensor, released: bool) -> Tensor:
    """Return weights (M, L) of the layers (M, L, d) of M tokens."""
    # Only norms and angles matter, so the d dimensions are reduced to the span of a token's layers (at most L).
    layers = torch.linalg.qr(layers.transpose(1, 2), mode="r").R.transpose(1, 2)
    alignment, novelty = [], []
    for i in range(layers.shape[1]):
        near = [j for j in range(max(0, i - WINDOW), min(layers.shape[1], i + WINDOW + 1)) if j != i]
        if released and i < WINDOW:
            near = [j for j in near if j > i]
        # The columns of R are the layers in an orthonormal basis: first the neighbours, then layer i. Its last coordinate
        # is its component orthogonal to all neighbours.
        r = torch.linalg.qr(layers[:, [*near, i]].transpose(1, 2), mode="r").R
        own, others = r[:, :, -1], torch.nn.functional.normalize(r[:, :-1, :-1], dim=1)
        inside = (own[:, :-1] * others.mean(2)).sum(1)
        length = own.norm(dim=1)
        if released:
            alignment.append(own[:, :-1].norm(dim=1) / (inside * (len(near) + 1)))
        else:
            alignment.append(length / inside)
        novelty.append(own[:, -1].abs() / length)
    both = [torch.stack(parts, dim=1) for parts in (alignment, novelty)]
    return (both[0] / both[0].sum(1, keepdim=True) + both[1] / both[1].sum(1, keepdim=True)) / 2


class PaddedWordVectors(WordVectors):
    """Average of word vectors as in GCLSR's Table 2: words of letters only, averaged over 64 positions.

    Positions after the sentence share one random vector. A word without a vector has a random vector,
    by sentence and position.

    Args:
        path: File of word vectors.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "letters")

    @property
    def protocol(self) -> dict[str, Any]:
        """Return the protocol with the number of positions."""
        own = super().protocol
        return {**own, "pooling": f"{own['pooling']}, over {POSITIONS} padded places"}

    def vector(self, text: str, rows: list[int]) -> np.ndarray:
        """Return the mean (d,) of all positions: words, random vectors of unknown words, padding."""
        from multicse.models.word_module import hashed_vectors, split, word_hash  # here: takes seconds

        words = split(text)[:POSITIONS] or [EMPTY]
        rows_of = [self.find(word) for word in words]
        unknown = [f"{word}\n{place}\n{text}" for place, word in enumerate(words) if rows_of[place] is None]
        random = hashed_vectors(torch.tensor([word_hash(name) for name in ["", *unknown]]), self.vectors.shape[1]).numpy()
        known = self.vectors[[row for row in rows_of if row is not None]]
        total: np.ndarray = known.sum(0) + random[1:].sum(0) + (POSITIONS - len(words)) * random[0]
        return total / POSITIONS
