"""The papers' figures of a model on its tasks, as `evaluate.py --figures` draws them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from multicse.evaluation.report import Drawing
from multicse.evaluation.task import Encoded, Task, embed, unit
from multicse.evaluation.tasks.geometry import PairedGeometryTask
from multicse.evaluation.tasks.retrieval import ContrastiveTask, RetrievalTask
from multicse.evaluation.tasks.sts import PairTask
from multicse.reproduction.figures.pairs import alignment_text_uniformity, similarity_matrix, text_item_uniformity
from multicse.reproduction.figures.vectors import pairs_tsne

DRAWN_PAIRS = 20  # of each kind in a t-SNE figure (SG-BERT, Figure 5)
DRAWN_ITEMS = 24  # with their captions in a matrix, as many as leave these readable


def drawings(encoded: Encoded, tasks: Sequence[Task], seed: int) -> Iterator[Drawing]:
    """For pair sets t-SNE of pairs, and for items with captions the cosines of some."""
    for task in tasks:
        if isinstance(task, PairTask):
            yield f"tsne_{task.name}", partial(extreme_pairs, encoded, task, seed)
        elif isinstance(task, (RetrievalTask, ContrastiveTask)):
            yield f"similarity_{task.name}", partial(_cosines, encoded, task)


def scatters(task: Task, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[tuple[str, Figure]]:
    """For items with captions alignment, and their uniformity, against that of texts (Zhao et al. 2023, Figures 2 and 3)."""
    if isinstance(task, PairedGeometryTask):
        models = {label: [run[task.name] for run in found] for label, found in runs.items()}
        yield f"alignment_{task.name}", alignment_text_uniformity(models)
        yield f"uniformity_{task.name}", text_item_uniformity(models)


def _cosines(encoded: Encoded, task: RetrievalTask | ContrastiveTask) -> Figure:
    chosen = next(iter(task.samples.chunks(DRAWN_ITEMS)))
    captions = [sample.captions()[0] for sample in chosen]
    items = unit(embed(encoded, [sample.item for sample in chosen], task.samples.modality))
    return similarity_matrix(items @ unit(embed(encoded, captions)).T, captions, captions)


def extreme_pairs(encoded: Encoded, task: PairTask, seed: int = 0) -> Figure:
    """t-SNE of 20 pairs with the highest rating and 20 with the lowest (SG-BERT, Figure 5), fewer of a small set.

    Where fewer than 20 are rated exactly so, those with the next ratings follow.
    """
    ties = np.random.default_rng(seed).permutation(len(task.gold))  # which of equally rated pairs are drawn
    order = ties[np.argsort(task.gold[ties], kind="stable")]
    size = min(DRAWN_PAIRS, len(order) // 2)
    rows = np.concatenate([order[len(order) - size :], order[:size]])
    first, second = ([side[i] for i in rows] for side in (task.pairs.first, task.pairs.second))
    return pairs_tsne(encoded.encode(first), encoded.encode(second), np.arange(len(rows)) < size, seed)
