"""The trials of a sweep as plain records: what tables and figures know of one, without Ray and MLflow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["waiting", "running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration of a sweep and how far it came. Scores are higher when better, in the unit of the metric."""

    number: int
    """In the order in which they were made, from 0."""
    pipeline: str
    changes: dict[str, Any]
    """Dotted path -> value, as the sweep chose it; empty for the recipe as it stands."""
    status: Status
    """`stopped`: early, by the scheduler."""
    best: float | None
    """The best score so far; None before the first evaluation."""
    step: int
    steps: int
    """Steps made, and steps of a trial that runs to its end."""
    curve: tuple[tuple[int, float], ...] = ()
    """(step, score then), one an evaluation; of a sweep that still runs nothing."""
    seeds: int = 1
    """Runs with different seeds whose scores are averaged."""
    error: str | None = None
    trial_id: str = ""
    run_id: str | None = None
    ended_at: float | None = None
    """When it ended, in seconds since 1970."""

    @property
    def as_it_stands(self) -> bool:
        """Whether this is the recipe without any change."""
        return not self.changes

    @property
    def ended(self) -> bool:
        """Whether it finished, was stopped or failed."""
        return self.status in ("finished", "stopped", "failed")

    @property
    def scored(self) -> bool:
        """Whether it has a score to compare: a finite one, of a trial that did not fail."""
        return self.status != "failed" and self.best is not None and math.isfinite(self.best)

    @property
    def score(self) -> float:
        """The score to compare. Raises ValueError for a trial that has none."""
        if not self.scored or self.best is None:
            raise ValueError(f"{self.label} is {self.status} and has no score (best: {self.best})")
        return self.best

    def metrics(self, metric: str) -> dict[str, float]:
        """The score as runs log their best one: ``{"best/lee-dev/spearman": 45.2}``. metric: `Sweep.metric`."""
        return {f"best/{metric.removeprefix('-')}": -self.score if metric.startswith("-") else self.score}

    @property
    def label(self) -> str:
        """``trial 4``."""
        return f"trial {self.number}"

    @property
    def points(self) -> list[tuple[int, float]]:
        """The curve without values that are NaN or infinite."""
        return [(step, score) for step, score in self.curve if math.isfinite(score)]


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """The trials with a score, best first; of equal ones the earlier.

    Those of fewer seeds follow those of more, whatever their score: the mean of three is not one of one.
    """
    scored = (trial for trial in trials if trial.scored)
    return sorted(scored, key=lambda trial: (-trial.seeds, -trial.score, trial.number))


def best_trial(trials: Iterable[Trial]) -> Trial | None:
    """The first of `ranked`, stopped and running trials included; None when none has a score."""
    return next(iter(ranked(trials)), None)


def varied(trials: Iterable[Trial]) -> list[str]:
    """The paths that any of the trials changes, in the order of their first change."""
    return list(dict.fromkeys(path for trial in trials for path in trial.changes))


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Path -> its last two parts, or as many as tell it apart from the others: ``image.lr`` of ``optim.image.lr``."""

    def suffix(path: str, parts: int) -> str:
        return ".".join(path.split(".")[-parts:])

    names = {}
    for path in paths:
        lengths = range(2, max(3, path.count(".") + 2))
        others = [other for other in paths if other != path]
        free = (n for n in lengths if suffix(path, n) not in {suffix(other, n) for other in others})
        names[path] = suffix(path, next(free, path.count(".") + 1))
    return names


def show(value: Any) -> str:
    """A value of a setting, short: ``3.1e-06``, ``True``, ``supcon``, ``(1, 2, 3)``."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(tuple(value)) if isinstance(value, list) else str(value)
