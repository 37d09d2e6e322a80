from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from evaluation_helpers import Bag

from evaluation.geometry import GeometryTask, alignment, uniformity
from evaluation.registry import make_tasks
from evaluation.sts import Pairs, PairTask
from evaluation.task import EvaluationError

A = np.array([[1, 0, 0], [0.6, 0.8, 0], [0, 0.6, 0.8], [0, 0, 1]])
B = np.array([[0.8, 0.6, 0], [0, 1, 0], [0.6, 0, 0.8], [0, 0.8, 0.6]])


def test_golden_values() -> None:
    assert alignment(A, B) == pytest.approx(0.58, abs=1e-6)
    assert uniformity(A) == pytest.approx(-1.976761, abs=1e-6)


def test_vector_lengths_do_not_matter() -> None:
    lengths = np.array([[3.0], [0.2], [40.0], [7.0]])
    assert alignment(A * lengths, B * 37) == pytest.approx(0.58, abs=1e-5)
    assert uniformity(A * lengths) == pytest.approx(-1.976761, abs=1e-5)


def test_degenerate_input_is_refused() -> None:
    with pytest.raises(EvaluationError, match="row 1 is a zero vector"):
        uniformity(np.array([[1.0, 0], [0, 0]]))
    with pytest.raises(EvaluationError, match="over pairs of sentences"):
        uniformity(A[:1])
    with pytest.raises(EvaluationError, match="no pair is rated above 4"):
        GeometryTask(PairTask("x", Pairs(("a", "b"), ("c", "d"), (4.0, 1.0), ("s", "s"))), 4.0)


def test_positives_are_above_four_and_sentences_are_distinct() -> None:
    """A sentence that occurs twice counts once for uniformity; a rating of exactly 4 is no positive."""
    rows = [("a man", "a dog", 5.0), ("a man", "the cat", 4.0), ("red car", "big car", 4.2), ("food", "a dog", 0.0)]
    first, second, gold = zip(*rows, strict=True)
    task = GeometryTask(PairTask("toy", Pairs(first, second, gold, ("s",) * 4)), 4.0)

    unit = {text: (v := Bag().encode([text])[0]) / np.linalg.norm(v) for text in {*first, *second}}
    squares = [((unit[a] - unit[b]) ** 2).sum() for a, b in combinations(unit, 2)]
    want_alignment = np.mean([((unit[a] - unit[b]) ** 2).sum() for a, b, g in rows if g > 4])
    want_uniformity = math.log(np.mean([math.exp(-2 * s) for s in squares]))

    got, details = task.score(Bag())
    assert task.name == "toy-geometry"
    assert got == pytest.approx({"alignment": want_alignment, "uniformity": want_uniformity}, abs=1e-5)
    assert details == {"positives": 2, "threshold": 4.0, "sentences": 6}


def test_lee_has_positives_without_any_data_folder() -> None:
    (task,) = make_tasks(["lee-dev-geometry"])
    assert isinstance(task, GeometryTask)
    assert (len(task.positives), task.threshold) == (26, 0.5)
    assert 0 < task.score(Bag()).metrics["alignment"] < 4
