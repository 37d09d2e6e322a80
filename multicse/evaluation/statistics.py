"""Significance tests between encoders: t-tests over seeds, paired where runs share seeds, or paired tests over examples.

All differences are the second value minus the first, so positive means that the second is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # its subpackages are imported lazily

from multicse.evaluation.task import EvaluationError

CELLS = 2**20  # size of a (samples, N) array: 8 MB


class Summary(NamedTuple):
    """Mean, sample standard deviation (with n - 1; None for one value) and number of values."""

    mean: float
    sd: float | None
    n: int


class Test(NamedTuple):
    """Difference, two-sided p value, 95 % confidence interval of the difference."""

    difference: float
    p: float
    low: float
    high: float


def summary(values: Sequence[float] | np.ndarray) -> Summary:
    """Summarise the scores (N,) of runs."""
    x = _values("values", values, least=1)
    return Summary(float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else None, len(x))


def student_t(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> Test:
    """Run Student's two-sided unpaired t-test, with pooled variance, between the scores of two models over seeds.

    Args:
        a: Scores of the first model, (N,), one per seed, N >= 2.
        b: Scores of the second model, (M,), M >= 2.

    Raises:
        EvaluationError: A side has fewer than 2 values, a value is not finite, or neither side varies.

    References:
        Jian et al., Non-Linguistic Supervision for Contrastive Learning of Sentence Embeddings, NeurIPS 2022, Table 3.
    """
    x, y = _values("a", a), _values("b", b)
    _check_varies(x, y)
    return _result(float(y.mean() - x.mean()), scipy.stats.ttest_ind(y, x))


def paired_t(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> Test:
    """Run Student's two-sided paired t-test between the scores of two models whose runs share seeds.

    Runs with the same seed read the same samples in the same order, so their scores go up and down together; an unpaired
    test counts that as noise.

    Args:
        a: Scores of the first model, (N,), one per seed, N >= 2.
        b: Scores of the second model, (N,), with the same seeds in the same order.

    Raises:
        EvaluationError: Lengths differ, there are fewer than 2 values, one is not finite, or the differences do not vary.
    """
    x, y = _values("a", a), _values("b", b)
    _same_length(x, y)
    if np.ptp(y - x) <= 1e-12 * max(abs(x).max(), abs(y).max()):
        raise EvaluationError("the differences do not vary, so p is undefined; are the runs copies of one another?")
    return _result(float(y.mean() - x.mean()), scipy.stats.ttest_rel(y, x))


def power(effect: float, sd: float, n: int, level: float = 0.05) -> float:
    """Return the probability that a two-sided paired t-test finds an effect.

    Args:
        effect: True mean of the differences.
        sd: Standard deviation of the differences, above 0.
        n: Number of pairs, at least 2.
        level: Significance level.

    References:
        Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, chapter 2: the noncentral t distribution.
    """
    if n < 2 or not sd > 0:
        raise EvaluationError(f"power needs at least 2 pairs and a standard deviation above 0, got {n} and {sd}")
    if not effect:
        return level
    limit, shift = scipy.stats.t.ppf(1 - level / 2, n - 1), effect / sd * n**0.5
    # The square of a noncentral t; SciPy's noncentral t itself is NaN for some shifts of 10 and more.
    return float(scipy.stats.ncf.sf(limit**2, 1, n - 1, shift**2))


def one_sample_t(value: float, b: Sequence[float] | np.ndarray) -> Test:
    """Test the scores of runs against a constant, such as the score of an untrained model.

    Args:
        value: The constant.
        b: Scores, (N,), one per seed, N >= 2.
    """
    y = _values("b", b)
    _check_varies(y)
    return _result(float(y.mean()) - value, scipy.stats.ttest_1samp(y, value), value)


def _check_varies(*sides: np.ndarray) -> None:
    # equal values can differ by rounding, about 1e-16
    if max(map(np.ptp, sides)) <= 1e-12 * max(abs(side).max() for side in sides):
        raise EvaluationError("neither side varies, so p is undefined; are the runs copies of one another?")


def _result(difference: float, found: Any, origin: float = 0.0) -> Test:
    """Convert scipy's result; its confidence interval is relative to `origin`."""
    low, high = (float(end) - origin for end in found.confidence_interval(0.95))
    return Test(difference, float(found.pvalue), low, high)


def holm(p: Sequence[float]) -> list[float]:
    """Adjust the p values (N,) of several comparisons (Holm 1979): all claims below .05 are significant together."""
    values = np.asarray(p)
    order = np.argsort(values, kind="stable")
    adjusted = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    return np.minimum(adjusted, 1)[np.argsort(order, kind="stable")].tolist()


def paired_bootstrap(
    first: np.ndarray,
    second: np.ndarray,
    gold: np.ndarray,
    metric: str = "spearman",
    samples: int = 2_000,
    seed: int = 0,
) -> Test:
    """Compare the correlations of two encoders, in points, on the pairs of one test set by a paired bootstrap.

    p is twice the smaller share of differences on one side of 0, with 1 added to both counts, so it is never 0. The interval
    is between percentiles. The test compares two sets of weights, not two methods, which vary by seed.

    Args:
        first: Cosines of the first encoder, (N,).
        second: Cosines of the second encoder, (N,).
        gold: Ratings, (N,).
        metric: "spearman" or "pearson".
        samples: Number of resamples.
        seed: Seed of the resampling.

    Raises:
        EvaluationError: Lengths differ, a value is not finite, or all ratings are equal.
    """
    columns = [_values("first", first), _values("second", second), _values("gold", gold)]
    _same_length(*columns)
    if np.ptp(columns[-1]) == 0:
        raise EvaluationError("all ratings are equal, so a correlation is undefined")
    ranked, size = metric == "spearman", len(gold)
    rng, chunk = np.random.default_rng(seed), max(1, CELLS // size)

    def differences(counts: np.ndarray) -> np.ndarray:
        x, y, ratings = (_ranks(column, counts) if ranked else column for column in columns)
        return 100 * (_correlation(y, ratings, counts) - _correlation(x, ratings, counts))

    drawn = []
    for start in range(0, samples, chunk):
        rows = rng.integers(size, size=(min(chunk, samples - start), size))
        # How often each pair occurs in a resample: its ranks follow from sorting once.
        drawn.append(differences(np.stack([np.bincount(row, minlength=size) for row in rows])))
    found = np.concatenate(drawn)
    below, above = ((1 + int(side.sum())) / (1 + samples) for side in (found <= 0, found >= 0))
    low, high = np.quantile(found, (0.025, 0.975)).tolist()
    return Test(float(differences(np.ones((1, size), int))[0]), min(1.0, 2 * min(below, above)), low, high)


def sign_test(first: np.ndarray, second: np.ndarray) -> Test:
    """Compare the accuracies of two classifiers, in points, on one test set by McNemar's exact test.

    Args:
        first: Whether the first classifier is right on each example, (N,), boolean.
        second: Whether the second classifier is right, (N,), boolean.

    References:
        Agresti and Min, Simple improved confidence intervals for comparing matched proportions, 2005: the interval.
    """
    x, y = _values("first", first), _values("second", second)
    _same_length(x, y)
    lost, won, n = int((x > y).sum()), int((y > x).sum()), len(x)
    p = float(scipy.stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0
    # Half an example is added to each of the four cells.
    middle = (won - lost) / (n + 2)
    half = scipy.stats.norm.ppf(0.975) * np.sqrt(won + lost + 1 - (won - lost) ** 2 / (n + 2)) / (n + 2)
    low, high = (float(100 * np.clip(middle + side, -1, 1)) for side in (-half, half))
    return Test(100 * (won - lost) / n, p, low, high)


def _ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the ranks (samples, N) of values (N,) in resamples that contain them `counts` (samples, N) times.

    Equal values share the mean of their ranks.
    """
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(values[order]) > 0])
    times = np.add.reduceat(counts[:, order], starts, axis=1)
    group = np.empty(len(values), int)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(values)]))
    return (times.cumsum(1) - (times - 1) / 2)[:, group]


def _correlation(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the linear correlation (samples,) of x and y, (N,) or (samples, N); 0 if one is constant.

    Args:
        x: Values.
        y: Values.
        counts: How often each of them occurs, (samples, N).
    """
    size = counts.shape[1]
    x, y = (values - ((counts * values).sum(1) / size)[:, None] for values in (x, y))
    both, *own = (np.einsum("sn,sn,sn->s", counts, *sides) for sides in ((x, y), (x, x), (y, y)))
    scale = np.sqrt(own[0] * own[1])
    return np.divide(both, scale, out=np.zeros(len(counts)), where=scale > 1e-12 * size)


def _values(name: str, values: Sequence[float] | np.ndarray, least: int = 2) -> np.ndarray:
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or len(x) < least:
        raise EvaluationError(f"{name} needs at least {least} value{'s' * (least > 1)}, (N,), got shape {x.shape}")
    if not np.isfinite(x).all():
        place = int(np.flatnonzero(~np.isfinite(x))[0])
        raise EvaluationError(
            f"{name} contains {x[place]} at position {place}; remove failed runs or examples on both sides"
        )
    return x


def _same_length(*arrays: np.ndarray) -> None:
    if len({len(x) for x in arrays}) > 1:
        lengths = " and ".join(f"{len(x):,}" for x in arrays)
        raise EvaluationError(f"paired values must have the same length and order, got {lengths}")
