"""LAION's mAP@10 against its loop, how it is asked for, and the nearest captions against all cosines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks.retrieval import map_at_10, relevant_ranks
from multicse.reproduction.tasks.retrieval import (
    ReleasedRetrievalTask,
    map_at_10_released,
    nearest_captions,
    neighbour_table,
)
from tests.evaluation.evaluation_helpers import Bag
from tests.evaluation.paired_helpers import Coded, image_shards
from tests.evaluation.tasks.test_retrieval import random_pairs


def test_released_map_at_10_does_not_sort_the_ranks_of_an_item_s_captions() -> None:
    """LAION's evaluation loop, caption by caption: a perfect model scores well above 100."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(500), 5)
    perfect = np.concatenate([rng.permutation(np.arange(1, 6)) for _ in range(500)])  # in some order
    assert map_at_10(perfect, owners) == 100
    assert map_at_10_released(perfect, owners) == pytest.approx(137, abs=3)

    items, texts, owners = random_pairs(70, [5])
    owners, ranks = relevant_ranks(items, texts, np.stack([owners, np.arange(len(texts))]))
    expected = []
    for item in range(70):
        found = [rank for rank in ranks[owners == item] if rank <= 10]
        expected.append(sum(r / rank for r, rank in enumerate(found, 1)) / 5)
    assert map_at_10_released(ranks, owners) == pytest.approx(100 * np.mean(expected))
    assert map_at_10_released(ranks, owners) > map_at_10(ranks, owners) + 1


def test_it_is_asked_for_by_an_option(tmp_path: Path) -> None:
    shards = image_shards(tmp_path / "clotho-val", [["c1", "c0"], ["c1"]])
    (task,) = make_tasks([f"retrieval:{shards}?released=true&primary=mean_map10"])
    assert isinstance(task, ReleasedRetrievalTask) and (task.name, task.primary) == (
        "retrieval:clotho-val-released",
        "mean_map10",
    )
    metrics, (plain,) = task.score(Coded()).metrics, make_tasks([f"retrieval:{shards}?released=false"])
    assert metrics["mean_map10"] == (metrics["image_to_text_map10"] + metrics["text_to_image_map10"]) / 2
    assert metrics["image_to_text_map10"] > plain.score(Coded()).metrics["image_to_text_map10"]
    for option in ("released=yes", "released=true&shared=true"):
        with pytest.raises(EvaluationError, match="released"):
            make_tasks([f"retrieval:{shards}?{option}"])


def test_nearest_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multicse.reproduction.tasks.retrieval.ENCODE", 3)
    database = ["a dog runs", "a cat eats", "the red car", "a dog runs", "a big dog runs", "the small house"]
    queries = ["a dog runs", "red car"]
    found = nearest_captions(Bag(), queries, database, k=2)

    unit = {text: (v := Bag().encode([text])[0]) / np.linalg.norm(v) for text in [*queries, *database]}
    for query, neighbours in zip(queries, found, strict=True):
        best = sorted({text for text in database if text != query}, key=lambda text: -unit[query] @ unit[text])[:2]
        assert [text for text, _ in neighbours] == best
        assert [cosine for _, cosine in neighbours] == pytest.approx([unit[query] @ unit[text] for text in best])
    lines = neighbour_table(queries, found).splitlines()
    assert lines[2].startswith("a dog runs") and lines[3].startswith("  a big dog runs") and len(lines) == 8
