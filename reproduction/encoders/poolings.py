"""Poolings that only a paper has: SBERT-WK, and word vectors as GCLSR's released code averages them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multicse.evaluation.encoders.baselines import Pool, States
from multicse.evaluation.encoders.word_vectors import WordVectors
from multicse.evaluation.task import EvaluationError
from multicse.models.word_module import hashed_vectors, split, word_hash

PATTERN = r"wk(\d+)?(-released)?"
"""``wk``, ``wk<k>``: on the layers from 4, or from k, on; ``-released`` after it: the authors' code."""
WINDOW, START = 2, 4  # layers on either side, and the first layer that is used
POSITIONS, EMPTY = 64, "sickeningly"
"""Places of every sentence, and the word that an empty one is given."""


def make(match: re.Match[str], depth: int) -> Pool:
    """The pooling of a name that `PATTERN` matches, for a model of `depth` layers."""
    start, released = int(match[1] or START), match[2] is not None
    if start > depth - 2:
        raise EvaluationError(
            f"pooling {match[0]!r} uses the layers from {start} on and needs three of them, but the model's last is layer "
            f"{depth}; wk0 uses them all"
        )
    return lambda states, mask: wk(states, mask, start, WINDOW, released)


def wk(states: States, mask: Tensor, start: int = START, window: int = WINDOW, released: bool = False) -> Tensor:
    """SBERT-WK (Wang and Kuo 2020): tokens weighted over their layers, then over the sentence. (B, d)

    A token's vector is a weighted sum of its layers `start` to l. The weight of layer i is the mean of two, each
    scaled to sum to 1 over the layers: the inverse of its mean cosine with the layers up to `window` away (alignment),
    and the part of it that is orthogonal to them, as a share of its length (novelty). Tokens are weighted by the
    variance of the cosines of their neighbouring layers. The last token ([SEP]) is left out, as in the authors' code.

    `released` is the authors' code where it differs: layers with fewer than `window` layers below them lose those too,
    the alignment takes the cosine with the layer's projection on the others' span, and divides by their number once
    more (which favours the two ends).
    """
    keep = mask.bool().clone()
    places = torch.arange(keep.shape[1], device=keep.device).expand_as(keep)
    last = places.masked_fill(~keep, -1).amax(1)
    keep[torch.arange(len(keep), device=keep.device), last] = keep.sum(1) == 1  # a lone token stays
    sentence = keep.nonzero()[:, 0]
    layers = torch.stack([state[keep].float() for state in states[start:]], dim=1)  # (M, L, d): M tokens, L layers
    weights = _layer_weights(layers, window, released)
    tokens = torch.einsum("ml,mld->md", weights, layers)
    importance = torch.cosine_similarity(layers[:, 1:], layers[:, :-1], dim=2).var(1, unbiased=False)
    total = importance.new_zeros(len(keep)).index_add(0, sentence, importance)
    share = importance / total[sentence]
    return tokens.new_zeros(len(keep), tokens.shape[1]).index_add(0, sentence, share.unsqueeze(1) * tokens)


def _layer_weights(layers: Tensor, window: int, released: bool) -> Tensor:
    """Weights (M, L) of the layers (M, L, d) of M tokens."""
    # Lengths and angles are all that counts, so the d dimensions are left for the at most L that a token's layers span.
    layers = torch.linalg.qr(layers.transpose(1, 2), mode="r").R.transpose(1, 2)
    alignment, novelty = [], []
    for i in range(layers.shape[1]):
        near = [j for j in range(max(0, i - window), min(layers.shape[1], i + window + 1)) if j != i]
        if released and i < window:
            near = [j for j in near if j > i]
        # The columns of R are the layers in an orthonormal basis: the neighbours first, layer i last, whose last
        # coordinate is what no neighbour holds.
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
    """As the row of GCLSR's Table 2 was made: letters alone, and the mean is over 64 places.

    Those behind the sentence hold one random vector, the same for all; a word without a vector has a random one, which the
    sentence and the place decide (there: drawn anew).
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "letters")

    @property
    def protocol(self) -> dict[str, Any]:
        """How texts become vectors, and what was left out of the texts seen so far."""
        own = super().protocol
        return {**own, "pooling": f"{own['pooling']}, over {POSITIONS} padded places"}

    def vector(self, text: str, rows: list[int]) -> np.ndarray:
        """The mean (d,) of all positions: words, random vectors for unknown ones, padding."""
        words = split(text)[:POSITIONS] or [EMPTY]
        rows_of = [self.find(word) for word in words]
        unknown = [f"{word}\n{place}\n{text}" for place, word in enumerate(words) if rows_of[place] is None]
        random = hashed_vectors(torch.tensor([word_hash(name) for name in ["", *unknown]]), self.vectors.shape[1]).numpy()
        known = self.vectors[[row for row in rows_of if row is not None]]
        total: np.ndarray = known.sum(0) + random[1:].sum(0) + (POSITIONS - len(words)) * random[0]
        return total / POSITIONS
