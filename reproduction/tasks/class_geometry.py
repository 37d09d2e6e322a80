"""How far classes are apart on the unit sphere (MoCoUTRL, Figure 2)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from multicse.evaluation.task import Encoder, EvaluationError, Score, look_up
from multicse.evaluation.tasks.geometry import anisotropy, cosine_blocks, on_sphere

BINS = 10  # of the histogram of distances, over 0 to 2


class ClassDistances(NamedTuple):
    """Mean distances between unit vectors, and how many pairs lie in each tenth of 0 to 2."""

    intra: float  # over all pairs of one class
    inter: float  # over all pairs of two classes
    intra_counts: list[int]
    inter_counts: list[int]


def class_distances(x: np.ndarray, labels: Sequence[Any] | np.ndarray) -> ClassDistances:
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
    totals, counts = torch.zeros(2, dtype=torch.double), torch.zeros(2, BINS, dtype=torch.double)  # within, all
    for rows, columns, cosines in cosine_blocks(unit := on_sphere(x).double(), unit):
        distances = (2 - 2 * cosines).clamp_(0, 4).sqrt_()
        same = numbers[rows][:, None] == numbers[columns]
        if rows[0] == columns[0]:
            ahead = torch.ones_like(same).triu(1)
            distances, same = distances[ahead], same[ahead]
        for kind, chosen in enumerate((distances[same], distances)):
            totals[kind] += chosen.sum()
            counts[kind] += torch.histc(chosen, BINS, 0, 2)
    totals[1] -= totals[0]
    counts[1] -= counts[0]
    intra, inter = (totals / counts.sum(1)).tolist()
    return ClassDistances(intra, inter, *(count.long().tolist() for count in counts))


class ClassGeometryTask:
    """Distances within and between classes of labelled texts.

    ``intra_class_distance`` (lower: classes are tighter), ``inter_class_distance``, ``distance_ratio``, the first divided
    by the second, and `anisotropy`. The counts in the details are the histogram of MoCoUTRL's figure. Not in points.
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
        """The numbers above; counts, and histograms of the distances."""
        (vectors,) = look_up(encoder, self.texts)
        try:
            found = class_distances(vectors, self.labels)
        except EvaluationError as error:
            raise EvaluationError(f"task {self.name}: {error}") from error
        metrics = {
            "intra_class_distance": found.intra,
            "inter_class_distance": found.inter,
            "distance_ratio": found.intra / found.inter if found.inter else 1.0,
        }
        counts = {"intra_counts": found.intra_counts, "inter_counts": found.inter_counts}
        details = {"items": len(vectors), "classes": len(set(self.labels)), **counts}
        return Score(metrics | anisotropy(vectors), details)
