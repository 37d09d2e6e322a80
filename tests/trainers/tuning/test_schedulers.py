"""What ASHA goes on with, after a restart as well; what schedulers hear of the recipe as it stands."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune

from multicse.pipelines.visualcse import demo
from multicse.trainers.tuning.sweep import KEPT, Sweep, make_scheduler
from multicse.trainers.tuning.trial import PERCENT, Budget

RUNG = 60.0


def sweep() -> Sweep:
    space = {"optim.text.lr": tune.uniform(0, 1)}
    return Sweep(recipes={"visualcse": demo()}, spaces={"visualcse": space}, space="x", trials=9, seeds=(1,))


def test_asha_goes_on_with_the_best_third_of_those_before() -> None:
    asha = make_scheduler(sweep())
    assert KEPT == 3 and asha is not None
    trials = [SimpleNamespace(trial_id=str(number)) for number in range(5)]
    decided = []
    for trial, score in zip(trials, (3.0, 1.0, 2.0, 5.0, 2.9), strict=True):
        asha.on_trial_add(None, trial)
        assert asha.on_trial_result(None, trial, {PERCENT: RUNG - 1, "score": -score}) == asha.CONTINUE
        decided.append(asha.on_trial_result(None, trial, {PERCENT: RUNG, "score": score}))
        assert asha.on_trial_result(None, trial, {PERCENT: 0.0, "score": 0.0}) == asha.CONTINUE  # at its end
    # The first has nothing to be compared with; the last is below 3, from where on the best third of four begins.
    assert [word == asha.CONTINUE for word in decided] == [True, False, False, True, False]


def test_what_asha_knew_outlives_the_driver() -> None:
    reports: list[dict[str, Any] | None] = [
        {"steps": 1000, "judged": number < 3, "curve": json.dumps([[300, 9.0], [round(10 * RUNG), float(number)]])}
        for number in (0, 1, 2, 7)
    ]
    reports.append(None)  # it had not reported
    trials = [SimpleNamespace(trial_id=str(number), last_result=report) for number, report in enumerate(reports)]
    asha = make_scheduler(sweep(), SimpleNamespace(trials=trials))
    assert asha is not None
    for name, score, word in (("new", 1.0, asha.STOP), ("newer", 2.0, asha.CONTINUE)):
        asha.on_trial_add(None, new := SimpleNamespace(trial_id=name))
        assert asha.on_trial_result(None, new, {PERCENT: RUNG, "score": score}) == word


@pytest.mark.parametrize(("judged", "percent"), [(True, [25.0, 50.0, 75.0, 0.0]), (False, [0.0] * 4)])
def test_schedulers_hear_nothing_of_the_recipe_as_it_stands_nor_of_ends(
    judged: bool, percent: list[float], tmp_path: Path
) -> None:
    budget = Budget(tmp_path, (1, 2), steps=10, judged=judged)
    found = []
    for seed in (1, 2):
        found += [budget.report(seed, {"step": step, "score": 1.0}, "run")[PERCENT] for step in (5, 10)]
        budget.done[seed] = 1.0
    assert found == percent
