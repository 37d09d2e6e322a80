"""Tests of significance against published p values, scipy and naive loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from evaluation.statistics import (
    TTest,
    holm,
    paired_bootstrap,
    paired_bootstrap_accuracy,
    paired_t,
    student_t,
    student_t_from_summary,
    summary,
    welch_t,
    welch_t_from_summary,
)
from evaluation.task import EvaluationError

SIMCSE = (75.74, 0.90, 5)  # NonLing-CSE, Table 3, five seeds each
VISUAL = (76.96, 0.38, 5)


def test_published_p_values() -> None:
    student = student_t_from_summary(*SIMCSE, *VISUAL)
    assert student.difference == pytest.approx(1.22)
    assert (round(student.t, 3), student.df, round(student.p, 4)) == (2.792, 8, 0.0235)
    assert round(welch_t_from_summary(*SIMCSE, *VISUAL).p, 4) == 0.0354
    roberta = student_t_from_summary(76.36, 0.18, 5, 77.74, 0.25, 5)
    assert round(roberta.t, 1) == 10.0 and round(roberta.p, 6) == 8e-6


def test_summary_is_of_a_sample() -> None:
    assert summary([1.0, 2.0, 3.0, 4.0]) == pytest.approx((2.5, np.sqrt(5 / 3), 4))
    assert summary([7.0]) == (7.0, None, 1)


@pytest.mark.parametrize("test", [student_t, welch_t, paired_t])
def test_t_tests_against_scipy(test: Callable[[np.ndarray, np.ndarray], TTest]) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(75, 1, 6), rng.normal(76, 0.3, 6)
    expected = stats.ttest_rel(b, a) if test is paired_t else stats.ttest_ind(b, a, equal_var=test is student_t)
    found = test(a, b)
    assert found == pytest.approx((b.mean() - a.mean(), expected.statistic, expected.df, expected.pvalue))
    swapped = test(b, a)
    assert swapped.t == pytest.approx(-found.t) and swapped.p == pytest.approx(found.p)


def test_unpaired_runs_may_differ_in_number() -> None:
    a, b = [75.0, 76.0, 77.5], [78.0, 78.5]
    assert welch_t(a, b).p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert student_t(a, b).df == 3


@pytest.mark.parametrize("test", [student_t, welch_t, paired_t])
@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([75.0], [76.0, 77.0], "at least 2 values"),
        ([75.0, float("nan")], [76.0, 77.0], "nan at position 1"),
        ([0.1 + 0.2, 0.3], [75.1, 75.1], "undefined"),
    ],
)
def test_bad_runs(test: Callable[[list[float], list[float]], TTest], a: list[float], b: list[float], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        test(a, b)


def test_pairs_must_pair() -> None:
    with pytest.raises(EvaluationError, match="got 2 and 3"):
        paired_t([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(EvaluationError, match="at least 2 runs"):
        student_t_from_summary(75.0, 1.0, 5, 76.0, 1.0, 1)


def test_holm() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # R: p.adjust(p, "holm")
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    for level in (0.01, 0.02, 0.03, 0.05):  # the procedure as published: step down, stop at the first that fails
        rejected = []
        for k, i in enumerate(np.argsort(p)):
            if p[i] > level / (len(p) - k):
                break
            rejected.append(int(i))
        assert sorted(rejected) == [i for i, adjusted in enumerate(holm(p)) if adjusted <= level + 1e-12]
    with pytest.raises(EvaluationError, match="between 0 and 1"):
        holm([0.1, 1.2])


# ------------------------------------------------------------------------------------------------------------- bootstrap


def pairs(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosines of two encoders and ratings, all with ties; the second encoder is better."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 11, n) / 2
    return np.round(gold + rng.normal(0, 3, n), 0), np.round(gold + rng.normal(0, 1.5, n), 1), gold


def naive(metric: str, subsets: np.ndarray, samples: int = 400) -> np.ndarray:
    """Differences of resamples, one at a time, from the draws that `paired_bootstrap` makes."""
    correlation = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[metric]
    a, b, gold = pairs()
    rng = np.random.default_rng(7)
    members = [np.flatnonzero(subsets == name) for name in np.unique(subsets)]
    drawn = [rows[rng.integers(len(rows), size=(samples, len(rows)))] for rows in members]
    differences = []
    for which in np.concatenate(drawn, axis=1):
        first, second = (correlation(x[which], gold[which]).statistic for x in (a, b))
        differences.append(100 * (second - first))
    return np.asarray(differences)


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
@pytest.mark.parametrize("names", [("all",), ("one", "two", "three")])
def test_bootstrap_against_a_naive_loop(metric: str, names: tuple[str, ...]) -> None:
    a, b, gold = pairs()
    subsets = np.asarray(names)[np.arange(len(gold)) % len(names)]
    found = paired_bootstrap(a, b, gold, metric, samples=400, seed=7, subsets=subsets.tolist())
    expected = naive(metric, subsets)
    correlation = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[metric]
    assert found.difference == pytest.approx(100 * (correlation(b, gold).statistic - correlation(a, gold).statistic))
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(expected, [2.5, 97.5])))
    assert found.p == pytest.approx(2 * (1 + (expected <= 0).sum()) / 401)


def test_bootstrap_is_the_same_in_every_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = paired_bootstrap(*pairs(), samples=300, seed=1)
    monkeypatch.setattr("evaluation.statistics.CELLS", 120 * 7)
    assert paired_bootstrap(*pairs(), samples=300, seed=1) == pytest.approx(whole)
    assert paired_bootstrap(*pairs(), samples=300, seed=2) != whole


def test_equal_encoders_do_not_differ() -> None:
    a, _, gold = pairs()
    assert paired_bootstrap(a, a, gold, samples=200) == (0, 0, 0, 1)
    monotone = paired_bootstrap(a, np.exp(a / 10), gold, samples=200)  # ranks are all that counts
    assert monotone == pytest.approx((0, 0, 0, 1), abs=1e-9)


def test_bootstrap_rejects_as_often_as_it_says() -> None:
    """Encoders that are equally good get p < .05 in about 5 of 100 test sets, clearly different ones nearly always."""
    rng = np.random.default_rng(0)
    gold = rng.uniform(0, 5, (120, 100))
    same = [paired_bootstrap(g + rng.normal(0, 2, 100), g + rng.normal(0, 2, 100), g, samples=300).p for g in gold]
    better = [paired_bootstrap(g + rng.normal(0, 3, 100), g + rng.normal(0, 1, 100), g, samples=300).p for g in gold]
    assert 1 <= sum(p < 0.05 for p in same) <= 14
    assert sum(p < 0.05 for p in better) > 110


def test_a_collapsed_encoder_counts_as_0() -> None:
    a, b, gold = pairs()
    found = paired_bootstrap(np.full(len(a), 0.7), b, gold, samples=200)
    assert found.difference == pytest.approx(100 * stats.spearmanr(b, gold).statistic)
    assert found.low > 0


def test_accuracy_bootstrap_against_a_naive_loop() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(200) < 0.75, rng.random(200) < 0.85
    found = paired_bootstrap_accuracy(a, b, samples=20_000)
    which = rng.integers(200, size=(20_000, 200))
    expected = 100 * (b[which].mean(1) - a[which].mean(1))
    assert found.difference == pytest.approx(100 * (b.mean() - a.mean()))
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(expected, [2.5, 97.5])), abs=0.51)
    assert found.p == pytest.approx(2 * (expected <= 0).mean(), abs=0.01)
    with pytest.raises(EvaluationError, match="True or False"):
        paired_bootstrap_accuracy(a, b * 0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"similarities_a": np.zeros(5)}, "equally many.*5 and 120"),
        ({"gold": np.ones(120)}, "all ratings are equal"),
        ({"similarities_b": np.full(120, np.inf)}, "similarities_b holds inf at position 0"),
        ({"metric": "spearmen"}, "did you mean 'spearman'"),
        ({"samples": 20}, "at least 100"),
        ({"subsets": ["one"]}, "1 subset names for 120 pairs"),
    ],
)
def test_bad_bootstrap(change: dict[str, object], message: str) -> None:
    given = dict(zip(("similarities_a", "similarities_b", "gold"), pairs(), strict=True)) | change
    with pytest.raises(EvaluationError, match=message):
        paired_bootstrap(**given)  # type: ignore[arg-type]
