"""LAION's mAP@10 compared with its loop, its option, and distances of classes compared with their definition."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks import geometry
from multicse.evaluation.tasks.classification import Labelled, Row
from multicse.evaluation.tasks.retrieval import map_at_10, relevant_ranks
from multicse.reproduction.tasks.measures import (
    ClassGeometryTask,
    ReleasedRetrievalTask,
    class_distances,
    map_at_10_released,
)
from tests.evaluation.evaluation_helpers import Bag
from tests.evaluation.paired_helpers import Coded, image_shards
from tests.evaluation.tasks.test_geometry import cone, squares
from tests.evaluation.tasks.test_retrieval import random_pairs


def test_released_map_at_10_does_not_sort_the_ranks_of_an_item_s_captions() -> None:
    """LAION's evaluation loop, caption by caption: a perfect model scores well above 100."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(500), 5)
    perfect = np.concatenate([rng.permutation(np.arange(1, 6)) for _ in range(500)])  # in some order
    assert map_at_10(perfect, owners) == 100
    assert map_at_10_released(perfect, owners) == pytest.approx(137, abs=3)

    items, texts, owners = random_pairs(70, [5])
    owners, ranks = relevant_ranks(items, texts, [np.flatnonzero(owners == item) for item in range(70)])
    expected = []
    for item in range(70):
        found = [rank for rank in ranks[owners == item] if rank <= 10]
        expected.append(sum(r / rank for r, rank in enumerate(found, 1)) / 5)
    assert map_at_10_released(ranks, owners) == pytest.approx(100 * np.mean(expected))
    assert map_at_10_released(ranks, owners) > map_at_10(ranks, owners) + 1


def test_released_map_at_10_is_an_option(tmp_path: Path) -> None:
    shards = image_shards(tmp_path / "clotho-val", [["c1", "c0"], ["c1"]])
    (task,) = make_tasks([f"retrieval:{shards}?released=true&primary=mean_map10"])
    assert isinstance(task, ReleasedRetrievalTask) and (task.name, task.primary) == (
        "retrieval:clotho-val-released",
        "mean_map10",
    )
    metrics, (plain,) = task.score(Coded()).metrics, make_tasks([f"retrieval:{shards}?released=false"])
    assert metrics["mean_map10"] == (metrics["image_to_text_map10"] + metrics["text_to_image_map10"]) / 2
    assert metrics["image_to_text_map10"] > plain.score(Coded()).metrics["image_to_text_map10"]
    for option in ("released=perhaps", "released=true&shared=true"):
        with pytest.raises(EvaluationError, match="released"):
            make_tasks([f"retrieval:{shards}?{option}"])


@pytest.mark.parametrize("chunk", [5, 2048])
def test_class_distances_are_those_of_all_pairs(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "CHUNK", chunk)
    x, labels = cone(31, 6), [("a", "b", "c")[i * i % 3] for i in range(31)]
    distances = np.sqrt(squares(x))
    same = np.array([a == b for a, b in combinations(labels, 2)])
    assert class_distances(x, labels) == pytest.approx((distances[same].mean(), distances[~same].mean()), abs=1e-5)


def test_class_geometry_of_texts() -> None:
    texts, labels = ["a dog", "the dog", "a red car", "the red car", "a dog"], ["animal"] * 2 + ["thing"] * 2 + ["animal"]
    rows = [Row(text, label, "line") for text, label in zip(texts, labels, strict=True)]
    task = ClassGeometryTask("t", Labelled("file", {"train": rows[:4], "test": rows[4:]}))
    metrics, details, _ = task.score(Bag())
    intra, inter = class_distances(Bag().encode(texts), labels)
    assert metrics["intra_class_distance"] == pytest.approx(intra)
    assert metrics["inter_class_distance"] > metrics["intra_class_distance"]
    assert metrics["distance_ratio"] == pytest.approx(intra / inter)
    assert details == {"items": 5, "classes": 2}
    for refused in ([rows[0], rows[2]], [row._replace(second="pair") for row in rows]):
        with pytest.raises(EvaluationError, match="file contains pairs, or every class has one text"):
            ClassGeometryTask("t", Labelled("file", {"all": refused}))
