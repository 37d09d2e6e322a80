"""Tests of significance against R, scipy and naive loops; a published p value is in tests/pipelines/test_repeat.py."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from multicse.evaluation.statistics import holm, paired_bootstrap, paired_bootstrap_accuracy, student_t, summary
from multicse.evaluation.task import EvaluationError


def test_summary_is_of_a_sample() -> None:
    assert summary([1.0, 2.0, 3.0, 4.0]) == pytest.approx((2.5, np.sqrt(5 / 3), 4))
    assert summary([7.0]) == (7.0, None, 1)


@pytest.mark.parametrize(("a", "b"), [([75.0], [76.0, 77.0]), ([75.0, np.nan], [76.0, 77.0]), ([0.3, 0.3], [75.1, 75.1])])
def test_bad_runs(a: list[float], b: list[float]) -> None:
    with pytest.raises(EvaluationError):
        student_t(a, b)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # R: p.adjust(p, "holm")
    assert holm([0.9, 0.8]) == [1.0, 1.0]


# ------------------------------------------------------------------------------------------------------------- bootstrap


def pairs(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosines of two encoders and ratings, all with ties; the second encoder is better."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 11, n) / 2
    return np.round(gold + rng.normal(0, 3, n), 0), np.round(gold + rng.normal(0, 1.5, n), 1), gold


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_bootstrap_against_a_naive_loop(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    correlation = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[metric]
    a, b, gold = pairs()
    expected = []
    for which in np.random.default_rng(7).integers(120, size=(400, 120)):
        first, second = (correlation(x[which], gold[which]).statistic for x in (a, b))
        expected.append(100 * (second - first))
    for cells in (2**17, 120 * 7):  # in one chunk, in many
        monkeypatch.setattr("multicse.evaluation.statistics.CELLS", cells)
        found = paired_bootstrap(a, b, gold, metric, samples=400, seed=7)
        assert found.difference == pytest.approx(100 * (correlation(b, gold).statistic - correlation(a, gold).statistic))
        assert (found.low, found.high) == pytest.approx(tuple(np.percentile(expected, [2.5, 97.5])))
        assert found.p == pytest.approx(2 * (1 + (np.asarray(expected) <= 0).sum()) / 401)


def test_equal_and_collapsed_encoders() -> None:
    a, b, gold = pairs()
    assert paired_bootstrap(a, a, gold, samples=200) == (0, 0, 0, 1)
    collapsed = paired_bootstrap(np.full(len(a), 0.7), b, gold, samples=200)
    assert collapsed.difference == pytest.approx(100 * stats.spearmanr(b, gold).statistic)
    assert collapsed.low > 0


def test_accuracy_bootstrap_against_a_naive_loop() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(200) < 0.75, rng.random(200) < 0.85
    found = paired_bootstrap_accuracy(a, b, samples=20_000)
    which = rng.integers(200, size=(20_000, 200))
    expected = 100 * (b[which].mean(1) - a[which].mean(1))
    assert found.difference == pytest.approx(100 * (b.mean() - a.mean()))
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(expected, [2.5, 97.5])), abs=0.51)
    assert found.p == pytest.approx(2 * (expected <= 0).mean(), abs=0.01)
