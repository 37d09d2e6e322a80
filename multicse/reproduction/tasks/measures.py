"""Measures of single papers: distances of classes (MoCoUTRL, Figure 2), mAP@10 of LAION-CLAP's code, and prompts."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import model_validator

from multicse import plugins
from multicse.evaluation.task import Encoder, EvaluationError, Score, Task, look_up
from multicse.evaluation.tasks import geometry, retrieval
from multicse.evaluation.tasks.classification import Labelled, LabelledTask, read_labelled
from multicse.evaluation.tasks.geometry import anisotropy, cosine_blocks, on_sphere
from multicse.evaluation.tasks.retrieval import Found, RetrievalTask, place_in_group


def class_distances(x: np.ndarray, labels: Sequence[Any] | np.ndarray) -> tuple[float, float]:
    """Return the mean distance of pairs within classes, and of pairs from different classes.

    Every pair counts once, so large classes have a higher weight.

    Args:
        x: Embeddings, (N, d); they are normalised to unit length.
        labels: Classes, (N,): at least two, one with two members.
    """
    numbers = torch.from_numpy(np.unique(np.asarray(labels), return_inverse=True)[1])
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


class ClassGeometryTask(LabelledTask):
    """Distances within and between classes of labelled texts, and `anisotropy`; they are not in points.

    Metrics: ``intra_class_distance`` (lower for denser classes), ``inter_class_distance``, and ``distance_ratio`` (the first
    divided by the second).

    Raises:
        EvaluationError: If the texts are pairs, or every class has only one member.
    """

    primary = "distance_ratio"

    def __init__(self, name: str, data: Labelled) -> None:
        super().__init__(name, data)
        self.labels = np.concatenate(list(data.y.values()))
        if data.pairs or len(np.unique(self.labels)) == len(self.labels):
            raise EvaluationError(
                f"task {name}: {data.source} contains pairs, or every class has one text; distances of classes need single "
                "texts, and two texts of one class"
            )

    def score(self, encoder: Encoder) -> Score:
        """Return the metrics, and counts as details."""
        vectors = np.concatenate(look_up(encoder, *self.data.sides))
        intra, inter = class_distances(vectors, self.labels)
        metrics = {
            "intra_class_distance": intra,
            "inter_class_distance": inter,
            "distance_ratio": intra / inter if inter else 1.0,
        }
        return Score(metrics | anisotropy(vectors), {"items": len(vectors), "classes": len(self.data.classes)})


def map_at_10_released(ranks: np.ndarray, owners: np.ndarray) -> float:
    """Compute mAP@10 of items in points like LAION's code, only to compare with that code.

    The ranks of an item's captions are not sorted: the r-th caption among those with a rank of at most 10 counts r / rank,
    even if fewer than r - 1 of them have a lower rank. A perfect model scores 137 on average.

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


class Retrieval(retrieval.Retrieval):
    """Shards of images or audio with captions, both directions."""

    kind: Literal["retrieval"] = "retrieval"
    released: bool = False
    """Count mAP@10 as LAION's code does, which does not sort the ranks of an item's captions."""

    @model_validator(mode="after")
    def _captions_are_counted_one_by_one(self) -> Self:
        if self.released and self.shared:
            raise ValueError("released=true counts each caption and excludes shared=true; remove shared=true")
        return self

    def make(self, seed: int) -> Task:
        """Return the task."""
        if not self.released:
            return super().make(seed)
        return ReleasedRetrievalTask(f"{self.title}-released", self.place, self.primary)


class Geometry(geometry.Geometry):
    """A labelled TSV, or shards with captions."""

    kind: Literal["geometry"] = "geometry"

    def make(self, seed: int) -> Task:
        """Return the task."""
        if not self.place.removesuffix(".gz").endswith(".tsv"):
            return super().make(seed)
        return ClassGeometryTask(self.title, read_labelled(self.place, seed))


_prompts = tomllib.loads((Path(__file__).parents[1] / "tables" / "clip.toml").read_text(encoding="utf-8"))["prompts"]
plugins.add("templates", "clap29", tuple(_prompts))
