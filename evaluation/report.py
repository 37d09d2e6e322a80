"""A model measured: its scores with provenance, what significance tests need, and figures."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation import tables
from evaluation.geometry import GeometryTask
from evaluation.sts import PairTask
from evaluation.task import Encoded, Task, encode_once

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from evaluation.models import Model

logger = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "sentence-transformers", "numpy", "scipy", "scikit-learn")
DRAWN_PAIRS = 20  # of each kind in a t-SNE figure (SG-BERT, Figure 5)
DRAWN_VECTORS = 2000  # in a figure of densities, whose cost grows with the square


@dataclass(frozen=True)
class Measured:
    """One model on some tasks. `report` is what the JSON file holds, `examples` what a test of two single runs needs."""

    report: dict[str, Any]
    examples: dict[str, np.ndarray] = field(default_factory=dict)
    encoded: Encoded | None = None


def measure(spec: str, model: Model, tasks: Sequence[Task]) -> Measured:
    """Score every task; each distinct text is encoded once."""
    encoded = encode_once(tasks, model)
    scores = {task.name: task.score(encoded) for task in tasks}
    results = {name: {**score.metrics, **score.details} for name, score in scores.items()}
    report: dict[str, Any] = {"model": spec, "results": results}
    if (average := tables.average(results)) is not None:
        report["average"] = average
    if (average := tables.average(results, tables.TRANSFER, "accuracy")) is not None:
        report["transfer_average"] = average
    report["provenance"] = provenance(model, tasks)
    examples = {name: score.examples for name, score in scores.items() if score.examples is not None}
    return Measured(report, examples, encoded)


def provenance(model: Model, tasks: Sequence[Task]) -> dict[str, Any]:
    """What was measured, on what, by what."""
    similarity = {"similarity": "cosine", "spearman": "all subsets concatenated"}
    return {
        "model_sha256": model.hash,
        "data_sha256": {task.name: getattr(task, "hash", None) for task in tasks},
        "protocol": {**similarity, **model.protocol},
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
    }


def figures(encoded: Encoded, tasks: Sequence[Task], seed: int = 0) -> Iterator[tuple[str, Figure]]:
    """Name and figure: for pair sets similarity by rating, t-SNE of pairs, angles; for labelled texts angles by class.

    What cannot be drawn (a collapsed encoder has no t-SNE) is left out with a warning.
    """
    for name, draw in _drawings(encoded, tasks, seed):
        try:
            yield name, draw()
        except ValueError as error:
            logger.warning("figure %s is left out: %s", name, error)


def _drawings(encoded: Encoded, tasks: Sequence[Task], seed: int) -> Iterator[tuple[str, Callable[[], Figure]]]:
    from evaluation.classification import ClassificationTask
    from evaluation.figures import COLOURS, similarity_by_gold_figure
    from evaluation.figures_vectors import angle_kde

    for task in tasks:
        if isinstance(task, PairTask):
            yield f"similarity_{task.name}", partial(similarity_by_gold_figure, task.similarities(encoded), task.gold)
            yield f"tsne_{task.name}", partial(extreme_pairs, encoded, task, seed)
            yield f"angles_{task.name}", partial(angle_kde, encoded.encode(_some(task.sentences(), seed)))
        elif isinstance(task, ClassificationTask):
            rows = _some([row for part in task.data.parts.values() for row in part], seed)
            labels = [row.label for row in rows]
            few = len(set(labels)) <= len(COLOURS)  # more could not be told apart
            yield f"angles_{task.name}", partial(angle_kde, encoded.encode([r.text for r in rows]), labels if few else None)


def extreme_pairs(encoded: Encoded, task: PairTask, seed: int = 0) -> Figure:
    """t-SNE of 20 pairs with the highest rating and 20 with the lowest (SG-BERT, Figure 5), fewer of a small set.

    Where fewer than 20 are rated exactly so, those with the next ratings follow.
    """
    from evaluation.figures_vectors import pairs_tsne

    ties = np.random.default_rng(seed).permutation(len(task.gold))  # which of equally rated pairs are drawn
    order = ties[np.argsort(task.gold[ties], kind="stable")]
    size = min(DRAWN_PAIRS, len(order) // 2)
    rows = np.concatenate([order[len(order) - size :], order[:size]])
    first, second = ([side[i] for i in rows] for side in (task.pairs.first, task.pairs.second))
    return pairs_tsne(encoded.encode(first), encoded.encode(second), np.arange(len(rows)) < size, seed)


def scatter(reports: Mapping[str, Mapping[str, Any]], tasks: Sequence[Task]) -> Iterator[tuple[str, Figure]]:
    """Alignment against uniformity of several models on each pair set, coloured by the score of that set if it is there."""
    from evaluation.figures import alignment_uniformity_scatter

    for task in tasks:
        if not isinstance(task, GeometryTask):
            continue
        results = {label: report["results"] for label, report in reports.items()}
        places = {label: (r[task.name]["alignment"], r[task.name]["uniformity"]) for label, r in results.items()}
        scores = {label: r[task.pairs.name]["spearman"] for label, r in results.items() if task.pairs.name in r}
        label = f"Spearman x 100 on {task.pairs.name}"
        yield task.name, alignment_uniformity_scatter(places, scores if len(scores) == len(places) else None, label)


def _some(items: list[Any], seed: int) -> list[Any]:
    if len(items) <= DRAWN_VECTORS:
        return items
    return [items[i] for i in np.random.default_rng(seed).choice(len(items), DRAWN_VECTORS, replace=False)]
