"""Is one encoder better than another: over seeds (t tests), or over the examples of one test set.

Differences are the second minus the first everywhere, so a positive one says that the second is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # whose parts load when they are used

from multicse.evaluation.task import EvaluationError

CELLS = 2**20  # of one (samples, N) array: 8 MB


class Summary(NamedTuple):
    """Mean, sample standard deviation (n - 1 below the root; None for one value) and number of values."""

    mean: float
    sd: float | None
    n: int


class TTest(NamedTuple):
    """Difference of means, two-sided p, 95 % interval of the difference."""

    difference: float
    p: float
    low: float
    high: float


def summary(values: Sequence[float] | np.ndarray) -> Summary:
    """Mean ± sd of runs."""
    x = _values("values", values, least=1)
    return Summary(float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else None, len(x))


def student_t(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray, *, pooled: bool = True) -> TTest:
    """Unpaired t test with pooled variance: the test of NonLing-CSE's Table 3, over seeds. Without, it is Welch's, which
    does not take the two variances for equal.

    Raises EvaluationError for fewer than 2 values on a side, a value that is not finite, and no variance on both sides.
    """
    x, y = _values("a", a), _values("b", b)
    _check_varies(x, y)
    return _result(float(y.mean() - x.mean()), scipy.stats.ttest_ind(y, x, equal_var=pooled))


def one_sample_t(value: float, b: Sequence[float] | np.ndarray) -> TTest:
    """Runs against a number that no seed changes, such as an untrained model's; errors as `student_t`."""
    y = _values("b", b)
    _check_varies(y)
    return _result(float(y.mean()) - value, scipy.stats.ttest_1samp(y, value), value)


def _check_varies(*sides: np.ndarray) -> None:
    # rounding leaves a spread of 1e-16 in equal values
    if max(map(np.ptp, sides)) <= 1e-12 * max(abs(side).max() for side in sides):
        raise EvaluationError("neither side varies, so p is undefined; are the runs copies of one another?")


def _result(difference: float, found: Any, origin: float = 0.0) -> TTest:
    """origin: what scipy's interval is counted from."""
    low, high = (float(end) - origin for end in found.confidence_interval(0.95))
    return TTest(difference, float(found.pvalue), low, high)


def holm(p: Sequence[float]) -> list[float]:
    """p values of several comparisons, adjusted (Holm 1979): below .05 means that all such claims hold together."""
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
) -> float:
    """The p of two encoders on the pairs of one test set: cosines (N,) of each, human ratings (N,).

    Both are measured on the same resampled pairs, so what makes a set hard for both cancels out. `metric` is "spearman"
    or "pearson", over all pairs as in `PairTask`. A resample whose values are all equal counts as 0. p is twice the
    smaller share of resamples on one side of 0, with 1 added to both counts, so it is never 0. It speaks of these two
    sets of weights, not of the methods: those vary by seed.

    Raises EvaluationError for lengths that differ, values that are not finite, and ratings that are all equal.
    """
    columns = [_values("first", first), _values("second", second), _values("gold", gold)]
    _same_length(*columns)
    if np.ptp(columns[-1]) == 0:
        raise EvaluationError("all ratings are equal, so a correlation is undefined")
    rng, chunk = np.random.default_rng(seed), max(1, CELLS // len(gold))
    differences = []
    for start in range(0, samples, chunk):
        rows = rng.integers(len(gold), size=(min(chunk, samples - start), len(gold)))
        x, y, ratings = (column[rows] for column in columns)
        if metric == "spearman":
            x, y, ratings = (scipy.stats.rankdata(values, axis=1) for values in (x, y, ratings))
        differences.append(_correlation(y, ratings) - _correlation(x, ratings))
    drawn = np.concatenate(differences)
    below, above = ((1 + int(side.sum())) / (1 + samples) for side in (drawn <= 0, drawn >= 0))
    return min(1.0, 2 * min(below, above))


def sign_test(first: np.ndarray, second: np.ndarray) -> float:
    """The p of two classifiers on the examples of one test set, which each got right (N,), booleans.

    McNemar's test in its exact form: whether of the examples that one alone got right, half are the second's.

    Raises EvaluationError for lengths that differ.
    """
    x, y = _values("first", first), _values("second", second)
    _same_length(x, y)
    differing = int((x != y).sum())
    return float(scipy.stats.binomtest(int((y > x).sum()), differing).pvalue) if differing else 1.0


def _correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Linear correlation (samples,) of the rows of x, y (samples, N); 0 where one is constant."""
    x, y = (values - values.mean(1, keepdims=True) for values in (x, y))
    both, scale = (x * y).sum(1), np.sqrt((x * x).sum(1) * (y * y).sum(1))
    return np.divide(both, scale, out=np.zeros_like(both), where=scale > 1e-12 * x.shape[1])


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
