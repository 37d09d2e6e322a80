"""Selection of the weights that a run keeps, by a development score, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor

from multicse.evaluation.report import Report
from multicse.evaluation.task import Task
from multicse.trainers.recipe import EvaluationConfig


def lower_is_better(task: Task) -> bool:
    """Return True if lower values of the task's primary metric are better, as for a loss."""
    return bool(getattr(task, "lower_is_better", False))


class Selection:
    """Scores of a development task during a run. They are stored such that higher is better.

    Args:
        config: Settings of the evaluation.
        task: The task. If None, nothing is selected: the last weights are kept.
    """

    def __init__(self, config: EvaluationConfig, task: Task | None = None) -> None:
        self.config, self.task = config, task
        self.best_score, self.best_step, self.last_score = -math.inf, 0, -math.inf
        self.bad_rounds = 0
        """Evaluations that patience counts."""
        self.weights: dict[str, Tensor] | None = None
        """Weights of the best evaluation, which are kept instead of the last ones. They are no part of `state_dict`."""

    @classmethod
    def read(cls, config: EvaluationConfig, state: dict[str, Any]) -> Self:
        """Return the selection of a checkpoint with this state, without its task and weights."""
        found = cls(config)
        found.load_state_dict(state["selection"])
        return found

    def add(self, step: int, scores: Report, weights: Callable[[], dict[str, Tensor]]) -> None:
        """Add an evaluation.

        Args:
            step: Step of the evaluation.
            scores: Scores of the development tasks.
            weights: Returns a copy of the evaluated weights.
        """
        if self.task is None:
            self.best_step = step
            return
        score = scores[self.task.name][self.task.primary] * (-1 if lower_is_better(self.task) else 1)
        better, lower = score > self.best_score, score < self.last_score
        self.last_score = score
        if better:
            self.best_score, self.best_step = score, step
            self.weights = weights() if self.config.keep == "best" else None
        if self.config.patience_counts == "decreases":
            self.bad_rounds += lower
        else:
            self.bad_rounds = 0 if better else self.bad_rounds + 1

    def forget(self) -> None:
        """Do not keep the weights of the evaluations so far."""
        self.best_score, self.weights = -math.inf, None

    @property
    def exhausted(self) -> bool:
        """True if training must stop early."""
        return self.config.patience is not None and self.bad_rounds >= self.config.patience

    @property
    def kept_score(self) -> float:
        """Score of the weights that are kept; minus infinity if there is none."""
        return self.last_score if self.config.keep == "last" else self.best_score

    def kept(self, step: int) -> tuple[int, float | None]:
        """Return the step of the weights that are kept, and their value of the metric, or None if it is not finite.

        Args:
            step: Current step.
        """
        value = -self.kept_score if self.task and lower_is_better(self.task) else self.kept_score
        return step if self.config.keep == "last" else self.best_step, value if math.isfinite(value) else None

    def metrics(self) -> dict[str, float]:
        """Return the finite ones of ``score``, the last score, and ``best``, the score of the weights that are kept."""
        found = {"score": self.last_score, "best": self.kept_score}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def state_dict(self) -> dict[str, Any]:
        """Return scores, best step and count."""
        return {name: getattr(self, name) for name in ("best_score", "best_step", "last_score", "bad_rounds")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore scores, best step and count."""
        vars(self).update(state)
