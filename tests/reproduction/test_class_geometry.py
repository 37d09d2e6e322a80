"""Distances within and between classes against their definition, of texts and of shards."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks import geometry
from multicse.reproduction.tasks.class_geometry import ClassGeometryTask, class_distances
from tests.evaluation.evaluation_helpers import Bag
from tests.evaluation.tasks.test_geometry import cone, squares


def test_every_class_of_one_member_is_refused() -> None:
    with pytest.raises(EvaluationError):
        class_distances(cone(4, 3), [1, 2, 3, 4])


@pytest.mark.parametrize("chunk", [5, 2048])
def test_class_distances_are_those_of_all_pairs(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "CHUNK", chunk)
    x, labels = cone(31, 6), [("a", "b", "c")[i * i % 3] for i in range(31)]
    distances = np.sqrt(squares(x))
    same = np.array([a == b for a, b in combinations(labels, 2)])
    found = class_distances(x, labels)
    assert (found.intra, found.inter) == pytest.approx((distances[same].mean(), distances[~same].mean()), abs=1e-5)
    assert found.intra_counts == np.histogram(distances[same], 10, (0, 2))[0].tolist()
    assert found.inter_counts == np.histogram(distances[~same], 10, (0, 2))[0].tolist()


def test_class_geometry_of_texts() -> None:
    texts, labels = ["a dog", "the dog", "a red car", "the red car", "a dog"], ["animal"] * 2 + ["thing"] * 2 + ["animal"]
    task = ClassGeometryTask("t", texts, labels)
    metrics, details, _ = task.score(Bag())
    distances = class_distances(Bag().encode(texts), labels)
    assert metrics["intra_class_distance"] == pytest.approx(distances.intra)
    assert metrics["inter_class_distance"] > metrics["intra_class_distance"]
    assert metrics["distance_ratio"] == pytest.approx(distances.intra / distances.inter)
    assert (details["items"], details["classes"], sum(details["intra_counts"])) == (5, 2, 4)
    assert task.sentences() == ["a dog", "the dog", "a red car", "the red car"]
    assert task.hash != ClassGeometryTask("t", texts, [*labels[:4], "thing"]).hash
