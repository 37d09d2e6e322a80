"""Is one encoder better than another: over seeds (t tests), or over the examples of one test set (paired bootstrap).

Differences are the second minus the first everywhere, so a positive one says that the second is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from evaluation.task import EvaluationError, did_you_mean

CELLS = 2**17  # of one (samples, N) array: a few of them stay in the processor's cache


class Summary(NamedTuple):
    """Mean, sample standard deviation (n - 1 below the root; None for one value) and number of values."""

    mean: float
    sd: float | None
    n: int


class TTest(NamedTuple):
    """Difference of means, t, degrees of freedom, two-sided p."""

    difference: float
    t: float
    df: float
    p: float


class Bootstrap(NamedTuple):
    """Difference in points on the whole set, its 95 % interval (percentiles), two-sided p."""

    difference: float
    low: float
    high: float
    p: float


def summary(values: Sequence[float] | np.ndarray) -> Summary:
    """Mean ± sd of runs."""
    x = _values("values", values, least=1)
    return Summary(float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else None, len(x))


# --------------------------------------------------------------------------------------------------------------- t tests


def student_t(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> TTest:
    """Unpaired t test with pooled variance: the test of NonLing-CSE's Table 3, over seeds.

    Raises EvaluationError for fewer than 2 values on a side, a value that is not finite, and no variance on both sides.
    """
    return student_t_from_summary(*_sides(a, b))


def student_t_from_summary(mean1: float, sd1: float, n1: int, mean2: float, sd2: float, n2: int) -> TTest:
    """`student_t` from what a paper prints: 75.74 ± 0.90 against 76.96 ± 0.38, 5 seeds each, gives p = .0235."""
    return _from_summary(mean1, sd1, n1, mean2, sd2, n2, pooled=True)


def welch_t(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> TTest:
    """Unpaired t test that does not take the two variances for equal; errors as `student_t`."""
    return welch_t_from_summary(*_sides(a, b))


def welch_t_from_summary(mean1: float, sd1: float, n1: int, mean2: float, sd2: float, n2: int) -> TTest:
    """`welch_t` from means, sample standard deviations and numbers of runs."""
    return _from_summary(mean1, sd1, n1, mean2, sd2, n2, pooled=False)


def paired_t(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> TTest:
    """t test on the differences of runs that belong together, a_i and b_i (same seed, same split).

    Raises EvaluationError as `student_t`, and for lengths that differ.
    """
    x, y = _values("a", a), _values("b", b)
    _same_length(x, y)
    differences = y - x
    # differences of rounded numbers that should be equal differ in the last bits
    if np.ptp(differences) <= 1e-12 * max(np.abs(x).max(), np.abs(y).max()):
        raise EvaluationError("all differences are equal, so p is undefined; give runs that vary")
    result = stats.ttest_rel(y, x)
    return TTest(float(differences.mean()), float(result.statistic), float(result.df), float(result.pvalue))


def _sides(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> tuple[float, float, int, float, float, int]:
    first, second = (summary(_values(name, x)) for name, x in (("a", a), ("b", b)))
    return first.mean, first.sd or 0.0, first.n, second.mean, second.sd or 0.0, second.n


def _from_summary(mean1: float, sd1: float, n1: int, mean2: float, sd2: float, n2: int, *, pooled: bool) -> TTest:
    if not all(math.isfinite(x) for x in (mean1, sd1, mean2, sd2)) or min(sd1, sd2) < 0:
        raise EvaluationError(f"means and standard deviations must be finite, the latter not negative: {sd1}, {sd2}")
    if min(n1, n2) < 2:
        raise EvaluationError(f"a t test needs at least 2 runs on each side, got {n1} and {n2}; run more seeds")
    # rounding leaves a spread of 1e-16 in equal values
    if max(sd1, sd2) <= 1e-12 * max(abs(mean1), abs(mean2)):
        raise EvaluationError("neither side varies, so p is undefined; are the runs copies of one another?")
    result = stats.ttest_ind_from_stats(mean2, sd2, n2, mean1, sd1, n1, equal_var=pooled)
    v1, v2 = sd1**2 / n1, sd2**2 / n2
    df = n1 + n2 - 2 if pooled else (v1 + v2) ** 2 / (v1**2 / (n1 - 1) + v2**2 / (n2 - 1))
    return TTest(mean2 - mean1, float(result.statistic), float(df), float(result.pvalue))


def holm(p: Sequence[float]) -> list[float]:
    """p values of several comparisons, adjusted (Holm 1979): below .05 means that all such claims hold together."""
    values = _values("p", p, least=1)
    if values.min() < 0 or values.max() > 1:
        raise EvaluationError(f"p values are between 0 and 1, got {list(p)}")
    order = np.argsort(values, kind="stable")
    adjusted = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    return np.minimum(adjusted, 1)[np.argsort(order, kind="stable")].tolist()


# ------------------------------------------------------------------------------------------------------------- bootstrap


def paired_bootstrap(
    similarities_a: np.ndarray,
    similarities_b: np.ndarray,
    gold: np.ndarray,
    metric: str = "spearman",
    samples: int = 10_000,
    seed: int = 0,
    subsets: Sequence[str] | None = None,
) -> Bootstrap:
    """Two encoders on the pairs of one test set: similarities (N,) of each, human ratings (N,).

    Both are measured on the same resampled pairs, so what makes a set hard for both cancels out. `metric` is "spearman"
    or "pearson", over all pairs as in `PairTask`; with `subsets` (N,) every subset keeps its number of pairs. A resample
    whose values are all equal counts as 0. p is twice the smaller share of resamples on one side of 0, with 1 added to
    both counts, so it is never 0. It speaks of these two sets of weights, not of the methods: those vary by seed.

    Raises EvaluationError for lengths that differ, values that are not finite, an unknown metric, under 100 samples.
    """
    x, y, g = _values("similarities_a", similarities_a), _values("similarities_b", similarities_b), _values("gold", gold)
    _same_length(x, y, g)
    if metric not in ("spearman", "pearson"):
        raise EvaluationError(
            f"unknown metric {metric!r}{did_you_mean(metric, ('spearman', 'pearson'))} Use spearman or pearson"
        )
    if np.ptp(g) == 0:
        raise EvaluationError("all ratings are equal, so a correlation is undefined")
    groups = np.zeros(len(g), int) if subsets is None else np.unique(np.asarray(subsets), return_inverse=True)[1]
    if len(groups) != len(g):
        raise EvaluationError(f"{len(groups):,} subset names for {len(g):,} pairs")
    columns = [_Ranks(v) if metric == "spearman" else _Values(v) for v in (x, y, g)]

    def difference(counts: np.ndarray) -> np.ndarray:
        first, second, ratings = (column(counts) for column in columns)
        return 100 * (_correlation(counts, second, ratings) - _correlation(counts, first, ratings))

    drawn = np.concatenate([difference(counts) for counts in _resamples(groups, samples, seed)])
    return _bootstrap(float(difference(np.ones((1, len(g))))[0]), drawn)


def paired_bootstrap_accuracy(
    correct_a: np.ndarray, correct_b: np.ndarray, samples: int = 10_000, seed: int = 0
) -> Bootstrap:
    """Two classifiers on the examples of one test set: which each got right (N,), booleans. Otherwise as above."""
    x, y = _values("correct_a", correct_a), _values("correct_b", correct_b)
    _same_length(x, y)
    if not np.isin(np.concatenate([x, y]), (0, 1)).all():
        raise EvaluationError("correct_a and correct_b say of each example whether it is right: True or False, 1 or 0")
    _enough(samples)
    # A resample's difference depends only on how many examples it holds that one of the two alone got right.
    counts = np.asarray([((y - x) == d).sum() for d in (-1, 0, 1)])
    drawn = np.random.default_rng(seed).multinomial(len(x), counts / len(x), size=samples)
    return _bootstrap(100 * float((y - x).mean()), 100 * (drawn[:, 2] - drawn[:, 0]) / len(x))


class _Ranks:
    """Average ranks within resamples without sorting any: counts, summed in the order of the values, say them.

    A value that occurs c times after L smaller ones has the rank L + (c + 1) / 2; centred here, the mean being (n + 1) / 2.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        self.starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        self.place = np.empty(len(values), int)
        self.place[self.order] = np.cumsum(np.isin(np.arange(len(values)), self.starts)) - 1

    def __call__(self, counts: np.ndarray) -> np.ndarray:
        repeats = counts[:, self.order]
        if len(self.starts) < counts.shape[1]:
            repeats = np.add.reduceat(repeats, self.starts, axis=1)
        ranks = np.cumsum(repeats, axis=1)
        ranks -= (repeats - 1) / 2
        ranks -= (counts.shape[1] + 1) / 2
        return ranks[:, self.place]


class _Values:
    """The values themselves, centred within each resample."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values - values.mean()

    def __call__(self, counts: np.ndarray) -> np.ndarray:
        return self.values - (counts @ self.values)[:, None] / counts.shape[1]


def _correlation(counts: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Correlation (samples,) of centred x, y (samples, N) that occur `counts` times; 0 where one is constant."""
    weighted = counts * x
    both, xx = np.einsum("bn,bn->b", weighted, y), np.einsum("bn,bn->b", weighted, x)
    scale = np.sqrt(xx * np.einsum("bn,bn,bn->b", counts, y, y))
    return np.divide(both, scale, out=np.zeros_like(both), where=scale > 1e-12 * counts.shape[1])


def _resamples(groups: np.ndarray, samples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each pair occurs in each resample (chunk, N); every group keeps its size."""
    _enough(samples)
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    chunk = max(1, CELLS // len(groups))
    for start in range(0, samples, chunk):
        size = min(chunk, samples - start)
        counts = np.empty((size, len(groups)))
        for rows in members:
            drawn = rng.integers(len(rows), size=(size, len(rows))) + np.arange(size)[:, None] * len(rows)
            counts[:, rows] = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        yield counts


def _bootstrap(difference: float, drawn: np.ndarray) -> Bootstrap:
    low, high = np.percentile(drawn, [2.5, 97.5])
    below, above = ((1 + int(side.sum())) / (1 + len(drawn)) for side in (drawn <= 0, drawn >= 0))
    return Bootstrap(difference, float(low), float(high), min(1.0, 2 * min(below, above)))


# ----------------------------------------------------------------------------------------------------------------- checks


def _values(name: str, values: Sequence[float] | np.ndarray, least: int = 2) -> np.ndarray:
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or len(x) < least:
        raise EvaluationError(f"{name} must hold at least {least} value{'s' * (least > 1)}, (N,), got shape {x.shape}")
    if not np.isfinite(x).all():
        place = int(np.flatnonzero(~np.isfinite(x))[0])
        raise EvaluationError(f"{name} holds {x[place]} at position {place}; leave out what failed, on both sides alike")
    return x


def _same_length(*arrays: np.ndarray) -> None:
    if len({len(x) for x in arrays}) > 1:
        lengths = " and ".join(f"{len(x):,}" for x in arrays)
        raise EvaluationError(f"paired values must be equally many and in the same order, got {lengths}")


def _enough(samples: int) -> None:
    if samples < 100:
        raise EvaluationError(f"samples={samples}: a 95 % interval needs at least 100, better 10,000")
