"""Texts that look for the others of their group, against a naive version that sorts every row of the whole matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from multicse.evaluation.registry import is_development, make_tasks
from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks.groups import GroupsTask


class Rows:
    """The embedding of the text ``tN`` is row N of a random matrix, near the row of its group."""

    def __init__(self, groups: list[int]) -> None:
        rng = np.random.default_rng(0)
        self.vectors = rng.standard_normal((max(groups) + 1, 6))[groups] + rng.standard_normal((len(groups), 6))

    def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
        return self.vectors[[int(text[1:]) for text in items]]


def naive(vectors: np.ndarray, right: list[set[int]]) -> dict[str, float]:
    """Recall and mAP@10 of the texts that have another one; `right` are the others of each text."""
    rows, best, precision = vectors / np.linalg.norm(vectors, axis=1, keepdims=True), [], []
    for query, wanted in enumerate(right):
        if wanted:
            order = [other for other in np.argsort(-rows @ rows[query]) if other != query]
            ranks = [rank for rank, other in enumerate(order, 1) if other in wanted]
            best.append(ranks[0])
            precision.append(sum(n / r for n, r in enumerate(ranks, 1) if r <= 10) / min(10, len(ranks)))
    found = {f"r{k}": 100 * float(np.mean(np.array(best) <= k)) for k in (1, 5, 10)}
    return found | {"map10": 100 * float(np.mean(precision))}


def test_scores_against_the_definition() -> None:
    """Groups of one to 14 texts; a text without another one is no query, but a wrong answer of the others."""
    groups = [group for group in range(12) for _ in range(group + (group > 9) * 3 + 1)]
    rows = [(f"t{number}", str(group)) for number, group in enumerate(groups)]
    right = [{j for j, other in enumerate(groups) if other == group and j != i} for i, group in enumerate(groups)]
    encoder, shuffled = Rows(groups), [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    expected = naive(encoder.vectors, right)
    for order in (rows, shuffled):
        score = GroupsTask("g", order).score(encoder)
        assert score.metrics == pytest.approx(expected)
        assert score.details == {"texts": len(rows), "queries": len(rows) - 1, "groups": 12}
    assert 0 < expected["r1"] < expected["r10"] < 100


def test_equal_texts_are_one_text_of_all_their_groups() -> None:
    """Nobody can tell them apart: the text of two groups looks for the others of both, and is found once."""
    rows = [("t0", "a"), ("t1", "a"), ("t1", "a"), ("t1", "b"), ("t2", "b"), ("t3", "c"), ("t4", "c")]
    encoder = Rows([0, 0, 1, 2, 2])
    score = GroupsTask("g", rows).score(encoder)
    assert score.metrics == pytest.approx(naive(encoder.vectors, [{1}, {0, 2}, {1}, {4}, {3}]))
    assert score.details["texts"] == 5


def test_a_file_of_texts_and_labels(tmp_path: Path) -> None:
    """Further columns are ignored; without two texts of a label nothing can be found."""
    file = tmp_path / "captions-dev.tsv"
    file.write_text("audio\tlabel\ttext\nx.wav\t1\tt0\nx.wav\t1\tt1\ny.wav\t2\tt2\n")
    (task,) = make_tasks([f"groups:{file}"])
    assert task.name == "groups:captions-dev" and task.sentences() == ["t0", "t1", "t2"]
    assert task.score(Rows([0, 0, 1])).details["queries"] == 2
    assert is_development(f"groups:{file}") and not is_development(f"groups:{tmp_path / 'captions-test.tsv'}")
    for content, said in (("1\tt0\n2\tt1\n1\tt0\n", "no group contains two different texts"), ("1\tt0\n1\t \n", "empty")):
        file.write_text("label\ttext\n" + content)
        with pytest.raises(EvaluationError, match=rf"captions-dev.*{said}"):
            make_tasks([f"groups:{file}"])
