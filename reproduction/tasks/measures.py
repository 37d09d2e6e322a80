"""Measures that only a paper has: distances of classes (MoCoUTRL, Figure 2), and mAP@10 as LAION-CLAP's code counts."""

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
    """Mean ||x_i - x_j|| over pairs i<j of x (N, d) with the same of labels (N,), and over pairs with different ones.

    Every pair counts once, so large classes weigh more. Raises EvaluationError for one class only, or when every class
    has one member.
    """
    numbers = torch.from_numpy(np.unique(np.asarray(labels), return_inverse=True)[1])
    sizes = numbers.bincount()
    if len(numbers) != len(x) or len(sizes) < 2 or sizes.max() < 2:
        raise EvaluationError(
            f"{len(x)} vectors with {len(numbers)} labels of {len(sizes)} classes, the largest of {int(sizes.max())}: "
            "distances within and between classes need two classes, and two members of one of them"
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

    ``intra_class_distance`` (lower: classes are tighter), ``inter_class_distance``, ``distance_ratio``, the first divided
    by the second, and `anisotropy`. Not in points.
    """

    primary = "distance_ratio"

    def __init__(self, name: str, texts: Sequence[str], labels: Sequence[str]) -> None:
        self.name = name
        self.texts, self.labels = list(texts), list(labels)

    @property
    def hash(self) -> str:
        """sha256 of the texts and labels."""
        return hashlib.sha256(repr(list(zip(self.texts, self.labels, strict=True))).encode()).hexdigest()

    def sentences(self) -> list[str]:
        """Distinct texts."""
        return list(dict.fromkeys(self.texts))

    def score(self, encoder: Encoder) -> Score:
        """The numbers above, and counts."""
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
    """mAP@10 of items in points as LAION's code computes it, from ranks and owners (T,) in the set's order of captions.

    The ranks of an item's captions are not sorted: the r-th caption, of those with a rank of at most 10, counts r / rank,
    whether or not r - 1 of them come before it. It is never below `map_at_10`, and equals it where the captions stand in the
    order of their ranks; a perfect model scores 137 on average. Only to compare with that code.
    """
    found = np.flatnonzero(ranks <= 10)
    gain = np.bincount(owners[found], place_in_group(owners[found], found) / ranks[found], minlength=owners.max() + 1)
    return 100 * float(np.mean(gain / np.bincount(owners)))


class ReleasedRetrievalTask(RetrievalTask):
    """Retrieval whose mAP@10 from item to text is `map_at_10_released`: to compare with LAION-CLAP's code, and to choose
    checkpoints as it does."""

    def metrics(self, there: Found, back: Found) -> dict[str, float]:
        """Recall and mAP, of the ranks from item to text and back."""
        own = {f"{self.ways[0]}_map10": map_at_10_released(there.ranks, there.queries)}
        return self.with_means(super().metrics(there, back) | own)
