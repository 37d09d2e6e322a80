"""Geometry of embeddings on the unit sphere: alignment of positives, uniformity and anisotropy of all embeddings.

All embeddings are scaled to unit length first. No metric is in points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from multicse.evaluation.kind import Kind
from multicse.evaluation.task import Encoder, EvaluationError, Score, Task, look_up
from multicse.evaluation.tasks.paired_items import PairedTask, encode_pairs
from multicse.evaluation.tasks.sts import PairTask

CHUNK = 2048  # rows per block of pairs
TOP = 3  # number of dimensions in top3_variance


def alignment(x: np.ndarray, y: np.ndarray) -> float:
    """Compute the alignment of positive pairs, mean ||x_i - y_i||^2; 0 to 4, lower is better (Wang and Isola, ICML 2020).

    Args:
        x: Embeddings of first items, (N, d).
        y: Embeddings of second items, (N, d).
    """
    if x.shape != y.shape:
        raise EvaluationError(f"alignment needs pairs of embeddings, got shapes {x.shape} and {y.shape}")
    return (on_sphere(x) - on_sphere(y)).square().sum(-1).mean().item()


def uniformity(x: np.ndarray) -> float:
    """Compute the uniformity log mean_{i<j} exp(-2 ||x_i - x_j||^2) of embeddings (N, d); -8 to 0, lower is better."""
    return float(np.float32(cross_uniformity_cyclip(x, x)))  # rounded to the precision of the cosines


def cross_uniformity_cyclip(x: np.ndarray, y: np.ndarray) -> float:
    """Compute log mean_{i>j} exp(-2 ||x_i - y_j||^2), named uniformity in CyCLIP's hypersphere script.

    It depends on the order of the pairs: use it only for comparison with that script; see `uniformity`.

    Args:
        x: Embeddings of items, (N, d).
        y: Embeddings of their captions, (N, d).
    """
    if len(x) != len(y) or len(x) < 2:
        raise EvaluationError(f"uniformity needs at least 2 pairs; got {len(x)} and {len(y)} embeddings")
    sums = []
    for rows, columns, cosines in cosine_blocks(on_sphere(y), on_sphere(x)):
        above = rows[:, None] < columns
        if above.any():
            sums.append((4 * cosines[above] - 4).logsumexp(0).double())  # -2 ||a - b||^2 = 4 cos - 4
    return float(torch.stack(sums).logsumexp(0)) - math.log(len(x) * (len(x) - 1) / 2)


def anisotropy(x: np.ndarray) -> dict[str, float]:
    """Compute measures of anisotropy of embeddings (N, d).

    ``mean_cosine`` over all pairs i<j: about 0 for evenly spread directions, about 1 in a narrow cone (Ethayarajh 2019).
    ``dimension_std``: mean over dimensions of the standard deviation times sqrt(d); 1 for evenly spread directions, 0 for
    constant embeddings (Chen and He 2021, Figure 2). ``top3_variance``: share of the variance in the three dimensions with
    the highest variance; 3/d if all are equal.
    """
    rows = on_sphere(x).double()
    mean_cosine = float((rows.sum(0).square() - rows.square().sum(0)).sum()) / (len(x) * (len(x) - 1))
    spread = rows.std(0, correction=0).numpy() * np.sqrt(x.shape[1])
    variance = np.sort(spread**2)[::-1]
    share = variance[:TOP].sum() / variance.sum() if variance.sum() > 0 else 1.0
    return {"mean_cosine": mean_cosine, "dimension_std": float(spread.mean()), "top3_variance": float(share)}


# ------------------------------------------------------------------------------------------------------------------ tasks


class GeometryTask:
    """Alignment of highly rated pairs, and uniformity and anisotropy of all distinct sentences, of a task of rated pairs.

    Args:
        pairs: The task of rated pairs.
        threshold: Pairs with a higher rating are positives (SimCSE: 4 of 5).
    """

    primary = "uniformity"

    def __init__(self, pairs: PairTask, threshold: float) -> None:
        self.name, self.hash = f"{pairs.name}-geometry", pairs.hash
        self.pairs = pairs
        self.threshold = threshold
        self.positives = np.flatnonzero(pairs.gold > threshold)
        if not len(self.positives):
            raise EvaluationError(f"task {self.name}: alignment needs positives, but no pair is rated above {threshold}")

    def sentences(self) -> list[str]:
        """Return the distinct sentences of all pairs."""
        return self.pairs.sentences()

    def score(self, encoder: Encoder) -> Score:
        """Return ``alignment``, ``uniformity``, ``uniformity_without_log`` and `anisotropy`; details are counts."""
        pairs, sentences = self.pairs.pairs, self.sentences()
        vectors, first, second = look_up(
            encoder, sentences, *([side[i] for i in self.positives] for side in (pairs.first, pairs.second))
        )
        metrics = {"alignment": alignment(first, second), "uniformity": uniformity(vectors)}
        metrics["uniformity_without_log"] = float(np.exp(metrics["uniformity"]))
        counts = {"positives": len(self.positives), "threshold": self.threshold, "sentences": len(sentences)}
        return Score(metrics | anisotropy(vectors), counts)


class PairedGeometryTask(PairedTask):
    """Alignment of images or audio clips with captions, and uniformity of each modality (Zhao et al., Figures 2 and 3).

    ``alignment`` is over all pairs of an item and one of its captions, ``text_uniformity`` over the distinct captions,
    ``image_uniformity`` or ``audio_uniformity`` over the items, and ``cross_uniformity_cyclip`` over the items with their
    first captions. ``modality_gap`` is the distance between the mean item and the mean caption (Liang et al. 2022).
    """

    primary = "alignment"

    def score(self, encoder: Encoder) -> Score:
        """Return the metrics above; details are the numbers of items and captions."""
        items, captions, owners = pairs = encode_pairs(self.samples, encoder)
        distinct = list(dict.fromkeys(captions))
        if len(distinct) < 2:
            raise EvaluationError(f"task {self.name}: all captions are {captions[0]!r}; uniformity needs two different ones")
        texts, different, first = look_up(encoder, captions, distinct, pairs.first)
        metrics = {
            "alignment": alignment(items[owners], texts),
            "text_uniformity": uniformity(different),
            f"{self.samples.modality}_uniformity": uniformity(items),
            "cross_uniformity_cyclip": cross_uniformity_cyclip(items, first),
        }
        gap = np.linalg.norm((on_sphere(items).double().mean(0) - on_sphere(different).double().mean(0)).numpy())
        metrics["modality_gap"] = float(gap)
        return Score(metrics, {"items": len(items), "captions": len(captions), "distinct_captions": len(distinct)})


class Geometry(Kind):
    """Shards with captions."""

    kind: Literal["geometry"] = "geometry"

    def make(self, seed: int) -> Task:
        """Return the task."""
        return PairedGeometryTask(self.title, self.place)


def cosine_blocks(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield row numbers (R,), column numbers (C,) and cosines (R, C) in blocks on and right of the diagonal.

    Args:
        a: Unit vectors, (N, d).
        b: Unit vectors, (N, d).
    """
    for top in range(0, len(a), CHUNK):
        for left in range(top, len(b), CHUNK):
            rows = torch.arange(top, min(top + CHUNK, len(a)))
            columns = torch.arange(left, min(left + CHUNK, len(b)))
            yield rows, columns, a[rows[0] : rows[-1] + 1] @ b[columns[0] : columns[-1] + 1].T


def on_sphere(x: np.ndarray) -> Tensor:
    """Scale rows (N, d) to unit length, float32; raise EvaluationError for a zero row."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise EvaluationError(f"row {int(np.argmin(lengths))} is a zero vector, which cannot be scaled to unit length")
    return torch.from_numpy(np.asarray(x / lengths, dtype=np.float32))
