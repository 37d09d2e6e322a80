"""The protocol of a comparison: how its rows are tuned, and what leaves a claim open whatever its p value is.

Every trained row has the same compute and the same tuning. Learning rates are tried in steps of a factor of three, each with
the tuning seeds of the table, which are not its test seeds, and the grid is extended until the best is inside. If the
best evaluation of such a run is its last one, all rows of the table are trained for longer. Every cell is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from multicse.evaluation import statistics
from multicse.evaluation.task import EvaluationError

RATIO = 3.0
"""Factor between neighbouring learning rates."""
FARTHEST = 4
"""Largest power of `RATIO` that is tried, up and down."""
LENGTHS = (1, 2, 4)
"""Factors on the number of steps of all rows of a table, in the order in which they are tried."""


def bracket(scores: Callable[[Sequence[int]], Sequence[float]]) -> dict[int, float]:
    """Return the scores of the powers -1, 0 and 1, and of further ones until the best is neither the least nor the greatest.

    Args:
        scores: Function of powers of `RATIO`, which returns one score for each; -inf for runs that diverge.
    """
    first = (-1, 0, 1)
    found = dict(zip(first, scores(first), strict=True))
    while True:
        best = max(found, key=lambda power: found[power])
        more = best - 1 if best == min(found) else best + 1 if best == max(found) else None
        if more is None or abs(more) > FARTHEST:
            return found
        (found[more],) = scores((more,))


def by_rate(cells: Sequence[Mapping[str, Any]]) -> dict[float, float]:
    """Return the mean score of each factor on the learning rates, in their order; -inf if a run has diverged."""
    scores: dict[float, list[float]] = {}
    for cell in cells:
        scores.setdefault(cell["factor"], []).append(-np.inf if cell["score"] is None else cell["score"])
    return {factor: float(np.mean(scores[factor])) for factor in sorted(scores)}


def winner(cells: Sequence[Mapping[str, Any]]) -> float:
    """Return the factor with the best mean score."""
    means = by_rate(cells)
    return max(means, key=lambda factor: means[factor])


def too_short(cells: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether most runs with the best learning rate are at their best in the last evaluation."""
    return _ends([cell for cell in cells if cell["factor"] == winner(cells)])


def faults(kept: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what leaves the claims on a row open, by the label of the row, from stored results.

    The best learning rate is on the edge of the grid, or the grid is not recorded; the best step of most runs is their
    last or first evaluation; rows were measured with several commits, whose samples may have different orders.
    """
    trained: dict[str, list[Mapping[str, Any]]] = {}
    for result in kept["results"]:
        if "steps" in result:
            trained.setdefault(result["label"], []).append(result)
    tuning, several = kept.get("tuning", {}), len({run["commit"] for runs in trained.values() for run in runs}) > 1
    found = {}
    for label, runs in trained.items():
        said = ["several commits"] if several else []
        if label not in tuning:
            said.append("learning rates tried with one seed, not recorded")
        elif winner(tuning[label]) in (min(rates := by_rate(tuning[label])), max(rates)):
            said.append("best learning rate on the edge")
        if _ends(runs):
            said.append("best step is the last")
        if median(run["best_step"] / run.get("eval_steps", run["steps"]) for run in runs) == 1 and not _ends(runs):
            said.append("best step is the first")
        found[label] = said
    return {label: said for label, said in found.items() if said}


def expected_power(
    tuning: Mapping[str, Sequence[Mapping[str, Any]]], row: str, against: str, effect: float, seeds: int
) -> float | None:
    """Return the power of `seeds` pairs to find an effect, before they are run: the tuning seeds give the deviation.

    Args:
        tuning: Cells by label of the row.
        row: Label of the row of a claim.
        against: Label of the row that it is compared with.
        effect: The paper's own effect, in points.
        seeds: Number of test seeds.

    Returns:
        None if the rows share less than two tuning seeds, or their differences do not vary.
    """
    if row not in tuning or against not in tuning:
        return None
    one, other = (
        {cell["seed"]: cell["score"] for cell in tuning[label] if cell["factor"] == winner(tuning[label])}
        for label in (row, against)
    )
    differences = [one[seed] - other[seed] for seed in one.keys() & other.keys()]
    try:
        return statistics.power(effect, float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0, seeds)
    except EvaluationError:
        return None


def _ends(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the best step of most runs is the last."""
    return median(run["best_step"] / run["steps"] for run in runs if run["best_step"] is not None) == 1
