"""The weights that a run keeps, and when it stops early, compared with their definitions."""

from __future__ import annotations

import itertools
import math
import random
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from multicse.evaluation.report import Report
from multicse.trainers.engine.selection import Selection
from multicse.trainers.recipe import EvaluationConfig


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("keep", ["best", "last"])
@pytest.mark.parametrize("counts", ["no_new_best", "decreases"])
def test_any_scores_select_what_the_settings_say(
    counts: Literal["no_new_best", "decreases"], keep: Literal["best", "last"], lower: bool
) -> None:
    """Also if the run resumes from a checkpoint after any evaluation, and if a score is not a number."""
    rng = random.Random(0)
    config = EvaluationConfig(patience=3, patience_counts=counts, keep=keep)
    task: Any = SimpleNamespace(name="dev", primary="metric", lower_is_better=lower)
    for _ in range(200):
        found = Selection(config, task)
        values: list[float] = []
        for step in range(8):
            values.append(rng.choice([1.0, 2.0, 3.0, 4.0, math.nan] if step else [1.0, 2.0]))
            scores_of = Report.of({"dev": {"metric": values[-1]}})
            found.add(step, scores_of, lambda step=step: {"step": step})  # type: ignore[misc]
            if rng.random() < 0.3:
                weights, state = found.weights, found.state_dict()
                found = Selection(config, task)
                found.load_state_dict(state)
                found.weights = weights
            scores = [-value if lower else value for value in values]
            good = [score for score in scores if not math.isnan(score)]
            best = scores.index(max(good))
            if counts == "decreases":
                bad = sum(after < before for before, after in itertools.pairwise(scores))
            else:
                bad = step - best
            assert found.exhausted == (bad >= 3)
            kept = step if keep == "last" else best
            assert found.kept(step) == (kept, values[kept] if math.isfinite(values[kept]) else None)
            assert found.weights == ({"step": best} if keep == "best" else None)
            assert found.metrics().get("best", math.nan) == pytest.approx(scores[kept], nan_ok=True)


def test_without_a_task_the_last_weights_are_kept() -> None:
    found = Selection(EvaluationConfig(select=None))
    for step in (0, 5):
        found.add(step, Report.of({"watched": {"metric": 1.0}}), dict)
        assert (found.kept(step), found.weights, found.metrics()) == ((step, None), None, {})
    assert not found.exhausted
