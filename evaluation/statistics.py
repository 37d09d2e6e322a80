"""Is one encoder better than another: over seeds (t tests), or over the examples of one test set (paired bootstrap).

Differences are the second minus the first everywhere, so a positive one says that the second is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # whose parts load when they are used

from multicse.evaluation.task import EvaluationError

CELLS = 2**17  # of one (samples, N) array: a few of them stay in the processor's cache


class Summary(NamedTuple):
    """Mean, sample standard deviation (n - 1 below the root; None for one value) and number of values."""

    mean: float
    sd: float | None
    n: int


class TTest(NamedTuple):
    """Difference of means, t, degrees of freedom, two-sided p, 95 % interval of the difference."""

    difference: float
    t: float
    df: float
    p: float
    low: float
    high: float


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
    return TTest(difference, float(found.statistic), float(found.df), float(found.pvalue), low, high)


def holm(p: Sequence[float]) -> list[float]:
    """p values of several comparisons, adjusted (Holm 1979): below .05 means that all such claims hold together."""
    values = np.asarray(p)
    order = np.argsort(values, kind="stable")
    adjusted = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    return np.minimum(adjusted, 1)[np.argsort(order, kind="stable")].tolist()


def paired_bootstrap(
    similarities_a: np.ndarray,
    similarities_b: np.ndarray,
    gold: np.ndarray,
    metric: str = "spearman",
    samples: int = 10_000,
    seed: int = 0,
) -> Bootstrap:
    """Two encoders on the pairs of one test set: similarities (N,) of each, human ratings (N,).

    Both are measured on the same resampled pairs, so what makes a set hard for both cancels out. `metric` is "spearman"
    or "pearson", over all pairs as in `PairTask`. A resample whose values are all equal counts as 0. p is twice the
    smaller share of resamples on one side of 0, with 1 added to both counts, so it is never 0. It speaks of these two
    sets of weights, not of the methods: those vary by seed.

    Raises EvaluationError for lengths that differ, values that are not finite, and ratings that are all equal.
    """
    x, y, g = _values("similarities_a", similarities_a), _values("similarities_b", similarities_b), _values("gold", gold)
    _same_length(x, y, g)
    if np.ptp(g) == 0:
        raise EvaluationError("all ratings are equal, so a correlation is undefined")
    columns = [(_ranks_of if metric == "spearman" else _values_of)(values) for values in (x, y, g)]

    def difference(counts: np.ndarray) -> np.ndarray:
        first, second, ratings = (column(counts) for column in columns)
        return 100 * (_correlation(counts, second, ratings) - _correlation(counts, first, ratings))

    drawn = np.concatenate([difference(counts) for counts in _resamples(len(g), samples, seed)])
    return _bootstrap(float(difference(np.ones((1, len(g))))[0]), drawn)


def paired_bootstrap_accuracy(
    correct_a: np.ndarray, correct_b: np.ndarray, samples: int = 10_000, seed: int = 0
) -> Bootstrap:
    """Two classifiers on the examples of one test set: which each got right (N,), booleans. Otherwise as above."""
    x, y = _values("correct_a", correct_a), _values("correct_b", correct_b)
    _same_length(x, y)
    # A resample's difference depends only on how many examples it holds that one of the two alone got right.
    counts = np.asarray([((y - x) == d).sum() for d in (-1, 0, 1)])
    drawn = np.random.default_rng(seed).multinomial(len(x), counts / len(x), size=samples)
    return _bootstrap(100 * float((y - x).mean()), 100 * (drawn[:, 2] - drawn[:, 0]) / len(x))


# scipy.stats.bootstrap sorts every resample, which takes four to eight times as long: more than to encode the sentences.
def _ranks_of(values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Centred average ranks (samples, N) of the values (N,) within resamples, without sorting any.

    The counts, summed in the order of the values, say them: a value that occurs c times after L smaller ones has the rank
    L + (c + 1) / 2, and the mean rank is (n + 1) / 2.
    """
    distinct, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(distinct)))

    def ranks(counts: np.ndarray) -> np.ndarray:
        repeats = np.add.reduceat(counts[:, order], starts, axis=1)
        found = np.cumsum(repeats, axis=1) - (repeats - 1) / 2 - (counts.shape[1] + 1) / 2
        return found[:, place]

    return ranks


def _values_of(values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The values (N,) themselves, centred within each resample."""
    centred = values - values.mean()
    return lambda counts: centred - (counts @ centred)[:, None] / counts.shape[1]


def _correlation(counts: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Correlation (samples,) of centred x, y (samples, N) that occur `counts` times; 0 where one is constant."""
    weighted = counts * x
    both, xx = np.einsum("bn,bn->b", weighted, y), np.einsum("bn,bn->b", weighted, x)
    scale = np.sqrt(xx * np.einsum("bn,bn,bn->b", counts, y, y))
    return np.divide(both, scale, out=np.zeros_like(both), where=scale > 1e-12 * counts.shape[1])


def _resamples(pairs: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each pair occurs in each resample, a chunk of them (B, N) at a time."""
    rng = np.random.default_rng(seed)
    chunk = max(1, CELLS // pairs)
    for start in range(0, samples, chunk):
        size = min(chunk, samples - start)
        drawn = rng.integers(pairs, size=(size, pairs)) + np.arange(size)[:, None] * pairs
        yield np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(float)


def _bootstrap(difference: float, drawn: np.ndarray) -> Bootstrap:
    low, high = np.percentile(drawn, [2.5, 97.5])
    below, above = ((1 + int(side.sum())) / (1 + len(drawn)) for side in (drawn <= 0, drawn >= 0))
    return Bootstrap(difference, float(low), float(high), min(1.0, 2 * min(below, above)))


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
