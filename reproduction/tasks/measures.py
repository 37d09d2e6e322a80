"""Measures of single papers: distances of classes (MoCoUTRL, Figure 2), and mAP@10 of LAION-CLAP's code."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from multicse.evaluation.task import Encoder, EvaluationError, Score, look_up
from multicse.evaluation.tasks.geometry import anisotropy, cosine_blocks, on_sphere
from multicse.evaluation.tasks.retrieval import Found, RetrievalTask, place_in_group


def class_distances(x: np.ndarray, labels: Sequence[Any] | np.ndarray) -> tuple[float, float]:
    """Return the mean distance of pairs within classes, and of pairs from different classes.

    Every pair counts once, so large classes have a higher weight.

    Args:
        x: Embeddings, (N, d); they are normalised to unit length.
        labels: Classes, (N,).

    Raises:
        EvaluationError: If there is only one class, or every class has only one member.
    """
    numbers = torch.from_numpy(np.unique(np.asarray(labels), return_inverse=True)[1])
    sizes = numbers.bincount()
    if len(numbers) != len(x) or len(sizes) < 2 or sizes.max() < 2:
        raise EvaluationError(
            f"{len(x)} vectors with {len(numbers)} labels of {len(sizes)} classes, the largest of {int(sizes.max())}: "
            "distances within and between classes need at least two classes, and two members of one class"
        )
    totals, counts = torch.zeros(2, dtype=torch.double), torch.zeros(2, dtype=torch.double)  # within, all
    for rows, columns, cosines in cosine_blocks(unit := on_sphere(x).double(), unit):
        distances = (2 - 2 * cosines).clamp_(0, 4).sqrt_()
        same = numbers[rows][:, None] == numbers[columns]
        if rows[0] == columns[0]:
            ahead = torch.ones_like(same).triu(1)
            distances, same = distances[ahead], same[ahead]
        totals += torch.stack([distances[same].sum(), distances.sum()])
        counts += torch.tensor([same.sum(), same.numel()])
    totals[1] -= totals[0]
    counts[1] -= counts[0]
    intra, inter = (totals / counts).tolist()
    return intra, inter


class ClassGeometryTask:
    """Distances within and between classes of labelled texts.

    Metrics: ``intra_class_distance`` (lower for denser classes), ``inter_class_distance``, ``distance_ratio`` (the first
    divided by the second), and `anisotropy`. They are not in points.

    Args:
        name: Name of the task.
        texts: N texts.
        labels: N class names.
    """

    primary = "distance_ratio"

    def __init__(self, name: str, texts: Sequence[str], labels: Sequence[str]) -> None:
        self.name = name
        self.texts, self.labels = list(texts), list(labels)

    @property
    def hash(self) -> str:
        """Return the SHA-256 of the texts and labels."""
        return hashlib.sha256(repr(list(zip(self.texts, self.labels, strict=True))).encode()).hexdigest()

    def sentences(self) -> list[str]:
        """Return the distinct texts."""
        return list(dict.fromkeys(self.texts))

    def score(self, encoder: Encoder) -> Score:
        """Return the metrics, and counts as details."""
        (vectors,) = look_up(encoder, self.texts)
        try:
            intra, inter = class_distances(vectors, self.labels)
        except EvaluationError as error:
            raise EvaluationError(f"task {self.name}: {error}") from error
        metrics = {
            "intra_class_distance": intra,
            "inter_class_distance": inter,
            "distance_ratio": intra / inter if inter else 1.0,
        }
        return Score(metrics | anisotropy(vectors), {"items": len(vectors), "classes": len(set(self.labels))})


def map_at_10_released(ranks: np.ndarray, owners: np.ndarray) -> float:
    """Compute mAP@10 of items in points like LAION's code, only to compare with that code.

    The ranks of an item's captions are not sorted: the r-th caption among those with a rank of at most 10 counts r / rank,
    even if fewer than r - 1 of them have a lower rank. The value is never below `map_at_10`, and equal if the captions are
    in the order of their ranks; a perfect model scores 137 on average.

    Args:
        ranks: Ranks of the captions in the order of the dataset, (T,), from 1.
        owners: Items of the captions, (T,).
    """
    found = np.flatnonzero(ranks <= 10)
    gain = np.bincount(owners[found], place_in_group(owners[found], found) / ranks[found], minlength=owners.max() + 1)
    return 100 * float(np.mean(gain / np.bincount(owners)))


class ReleasedRetrievalTask(RetrievalTask):
    """Retrieval with `map_at_10_released` from item to text, for comparison and checkpoint selection as in LAION-CLAP."""

    def metrics(self, there: Found, back: Found) -> dict[str, float]:
        """Return recall and mAP in both directions."""
        own = {f"{self.ways[0]}_map10": map_at_10_released(there.ranks, there.queries)}
        return self.with_means(super().metrics(there, back) | own)
