"""The contrastive loss on pairs: a golden value, batches against a naive version, and encoders without a scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import EvaluationError, evaluate
from tests.evaluation.paired_helpers import Coded, decoded, image_shards, sound_shards

A = [[1, 0, 0], [0.6, 0.8, 0], [0, 0.6, 0.8], [0, 0, 1]]
B = [[0.8, 0.6, 0], [0, 1, 0], [0.6, 0, 0.8], [0, 0.8, 0.6]]
CAPTIONS = [[f"c{i}", f"other {i + 1}"] for i in range(4)]


class Table:
    """Item i has row i of `items`, a text whose number is i row i of `texts`; lengths must not matter."""

    def __init__(self, items: Any, texts: Any, scale: float = 1 / 0.07) -> None:
        self.items, self.texts = 3 * np.asarray(items, dtype=float), 0.5 * np.asarray(texts, dtype=float)
        self.logit_scale = scale

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        if modality == "text":
            assert not any(text.startswith("other") for text in items)  # the first caption only
            return self.texts[[int(text[1:]) for text in items]]
        return self.items[[decoded(item) for item in items]]


@pytest.mark.parametrize("make", [image_shards, sound_shards])
def test_golden_value(tmp_path: Path, make: Any) -> None:
    """The fact sheet's golden value for CLIP's symmetric loss at 1 / 0.07; the whole set is less than one batch."""
    (task,) = make_tasks([f"contrastive:{make(tmp_path / 'pairs', CAPTIONS)}"])
    assert (task.name, task.primary, task.lower_is_better) == ("contrastive:pairs", "loss", True)  # type: ignore[attr-defined]
    score = task.score(Table(A, B))
    assert score.metrics == pytest.approx({"loss": 2.497642}, abs=5e-7)
    assert score.details["chance"] == pytest.approx(np.log(4)) and score.details["logit_scale"] == 1 / 0.07


def test_batches_against_torch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    items, texts = rng.standard_normal((73, 6)), rng.standard_normal((73, 6))
    shards = image_shards(tmp_path, [[f"c{i}"] for i in range(73)])
    (task,) = make_tasks([f"contrastive:{shards}?batch=20"])
    score = task.score(Table(items, texts, 7.0))
    a, b = (normalize(torch.from_numpy(x), dim=1) for x in (items, texts))
    want = []
    for start in (0, 20, 40):  # the last 13 are left out
        logits = 7.0 * a[start : start + 20] @ b[start : start + 20].T
        want.append((cross_entropy(logits, torch.arange(20)) + cross_entropy(logits.T, torch.arange(20))).item() / 2)
    assert score.metrics["loss"] == pytest.approx(np.mean(want))
    assert (score.details["batches"], score.details["left_out"], score.details["batch"]) == (3, 13, 20)


def test_batches_of_two_sizes_are_two_results(tmp_path: Path) -> None:
    """And naming the usual batch changes no name."""
    shards = image_shards(tmp_path / "pairs", [[f"c{i}"] for i in range(4)])
    tasks = make_tasks([f"contrastive:{shards}{options}" for options in ("", "?batch=2", "?batch=3")])
    assert [task.name for task in tasks] == [f"contrastive:pairs{end}" for end in ("", "-batch2", "-batch3")]
    assert set(evaluate(tasks, Table(A, B))) == {task.name for task in tasks}
    assert make_tasks([f"contrastive:{shards}?batch=80"])[0].name == "contrastive:pairs"
    with pytest.raises(EvaluationError, match="'contrastive:pairs'"):
        make_tasks([f"contrastive:{shards}", f"contrastive:{shards}?batch=80"])


def test_what_cannot_be_measured(tmp_path: Path) -> None:
    shards = image_shards(tmp_path, CAPTIONS)
    (task,) = make_tasks([f"contrastive:{shards}"])
    for encoder in (Coded(), Table(A, np.asarray(B)[:, :2])):
        with pytest.raises(EvaluationError):
            task.score(encoder)
    for option in ("batch=1", "batch=many", "size=3"):
        with pytest.raises(EvaluationError, match=option.split("=")[0]):
            make_tasks([f"contrastive:{shards}?{option}"])
