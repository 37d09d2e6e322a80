"""Tests of significance against R, scipy and naive loops; a published p value is in test_tables.py."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from multicse.evaluation.statistics import holm, paired_bootstrap, paired_t, power, sign_test, student_t, summary
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


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_bootstrap_against_a_naive_loop(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cosines of two encoders and ratings, all with ties; the second encoder is better."""
    monkeypatch.setattr("multicse.evaluation.statistics.CELLS", 120 * 7)  # in many chunks
    correlation = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[metric]
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 11, 120) / 2
    a, b = np.round(gold + rng.normal(0, 3, 120), 0), np.round(gold + rng.normal(0, 2.5, 120), 1)
    differences = []
    for which in np.random.default_rng(7).integers(120, size=(400, 120)):
        first, second = (correlation(x[which], gold[which]).statistic for x in (a, b))
        differences.append(second - first)
    want = 2 * (1 + (np.asarray(differences) <= 0).sum()) / 401
    assert 0.005 < want < 1
    found = paired_bootstrap(a, b, gold, metric, samples=400, seed=7)
    observed = 100 * (correlation(b, gold).statistic - correlation(a, gold).statistic)
    interval = 100 * np.quantile(differences, (0.025, 0.975))
    assert found == pytest.approx((observed, want, *interval))
    assert paired_bootstrap(a, a, gold, metric, samples=400) == (0, 1, 0, 0)
    collapsed = np.full(120, 0.7)
    assert paired_bootstrap(collapsed, gold, gold, metric, samples=400).p == pytest.approx(2 / 401)


def test_sign_test_against_binomial_counts() -> None:
    """Of 9 examples that one alone got right, 8 are the second's; how many both got right does not matter."""
    a, b = np.array([1] * 20 + [1] + [0] * 8), np.array([1] * 20 + [0] + [1] * 8)
    found = sign_test(a == 1, b == 1)
    assert found.p == pytest.approx(2 * (1 + 9) / 2**9) and found.difference == pytest.approx(100 * 7 / 29)
    assert sign_test(a, a)[:2] == (0, 1)


def test_the_interval_of_accuracies_covers_the_true_difference() -> None:
    """In 95 % of test sets of 100 examples, of which the second classifier gets 70 % right and the first 60 %."""
    rng, covered = np.random.default_rng(3), 0
    for first, second in zip(rng.random((2000, 100)) < 0.6, rng.random((2000, 100)) < 0.7, strict=True):
        found = sign_test(first, second)
        covered += found.low <= 10 <= found.high
    assert 0.93 < covered / 2000 < 0.97


def test_paired_t_is_a_test_of_the_differences() -> None:
    """Runs that share seeds: the unpaired test misses what the paired one finds."""
    rng = np.random.default_rng(0)
    seeds = rng.normal(0, 2, 6)
    a, b = 60 + seeds + rng.normal(0, 0.05, 6), 60.3 + seeds + rng.normal(0, 0.05, 6)
    found, known = paired_t(a, b), stats.ttest_1samp(b - a, 0)
    assert found.p == pytest.approx(known.pvalue) and found.difference == pytest.approx(float((b - a).mean()))
    assert (found.low, found.high) == pytest.approx(tuple(known.confidence_interval(0.95)))
    assert found.p < 0.001 < 0.5 < student_t(a, b).p
    for one, other in (([1.0, 2.0], [2.0, 3.0]), ([1.0, 2.0, 3.0], [1.0, 2.0])):
        with pytest.raises(EvaluationError, match=r"do not vary|same length"):
            paired_t(one, other)


def test_power_is_the_share_of_significant_draws() -> None:
    rng = np.random.default_rng(1)
    draws = rng.normal(0.5, 0.6, (20_000, 5))
    share = float((stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05).mean())
    assert power(0.5, 0.6, 5) == pytest.approx(share, abs=0.01)
    assert power(0.0, 1.0, 5) == pytest.approx(0.05)
    for shift in (9.0, 10.0, 22.4, 28.0, 1000.0):  # SciPy's noncentral t is NaN for some of them
        assert power(shift / 5**0.5, 1.0, 5) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(EvaluationError, match="at least 2 pairs"):
        power(1.0, 1.0, 1)
