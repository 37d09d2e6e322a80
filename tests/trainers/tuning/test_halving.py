"""What ASHA goes on with: the best quarter of those that came so far, also when it came first; the spared ones always."""

from __future__ import annotations

import random
import statistics
from types import SimpleNamespace
from typing import Any

import pytest

from trainers.tuning import sweep
from trainers.tuning.sweep import Halving
from trainers.tuning.trial import PERCENT

SPARED = {"pipeline": "simcse", "changes": {"simcse": {"optim.text.lr": 1.0}}}


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What keeps the rungs over a restart."""
    one = SimpleNamespace(rungs=None)
    monkeypatch.setattr(sweep, "current", lambda: one)
    return one


def halving() -> Halving:
    return Halving([SPARED], time_attr=PERCENT, metric="score", mode="max", max_t=99.99, grace_period=20.0)


def trial(scheduler: Halving, name: str, lr: float = 0.1) -> Any:
    config = {"trial": {"pipeline": "simcse", "changes": {"simcse": {"optim.text.lr": lr}}}}
    one = SimpleNamespace(trial_id=name, config=config)
    scheduler.on_trial_add(None, one)
    return one


def goes_on(scheduler: Halving, one: Any, percent: float, score: float) -> bool:
    return scheduler.on_trial_result(None, one, {PERCENT: percent, "score": score}) == Halving.CONTINUE


def quarter(scores: list[float]) -> float:
    """The least score of the best quarter."""
    return statistics.quantiles(scores, n=4, method="inclusive")[2] if len(scores) > 1 else scores[0]


def test_a_trial_goes_on_in_the_best_quarter_of_those_before(watch: SimpleNamespace) -> None:
    scheduler, draw, before = halving(), random.Random(1), list[float]()
    for number in range(40):
        score = draw.random()
        found = goes_on(scheduler, trial(scheduler, str(number)), 20.0, score)
        assert found == (not before or score >= quarter(before))
        before.append(score)


def test_rungs_double(watch: SimpleNamespace) -> None:
    scheduler = halving()
    best, other = trial(scheduler, "best"), trial(scheduler, "other")
    for percent in (20.0, 40.0, 80.0):
        assert goes_on(scheduler, other, percent, percent) and goes_on(scheduler, best, percent, percent)
    assert [[round(place, 6) for place, _ in bracket._rungs] for bracket in scheduler._brackets] == [[80.0, 40.0, 20.0]]
    assert goes_on(scheduler, best, 100.0, 0.0), "what made its last step ends by itself"


def test_who_came_first_is_stopped_when_others_are_better(watch: SimpleNamespace) -> None:
    scheduler = halving()
    first, second = trial(scheduler, "first"), trial(scheduler, "second")
    assert goes_on(scheduler, first, 20.0, 1.0), "there is nothing to compare it with"
    assert goes_on(scheduler, second, 20.0, 2.0)
    assert not goes_on(scheduler, first, 30.0, 9.0)
    assert goes_on(scheduler, second, 30.0, 0.0), "between rungs a score does not count"


def test_who_leads_now_is_not_stopped_for_a_slow_start(watch: SimpleNamespace) -> None:
    scheduler = halving()
    slow, other = trial(scheduler, "slow"), trial(scheduler, "other")
    assert goes_on(scheduler, slow, 20.0, 2.0) and goes_on(scheduler, other, 20.0, 3.0)
    assert goes_on(scheduler, slow, 40.0, 9.0) and not goes_on(scheduler, other, 40.0, 8.0)
    assert goes_on(scheduler, slow, 60.0, 9.0)


def test_the_recipe_as_it_stands_is_spared(watch: SimpleNamespace) -> None:
    scheduler = halving()
    assert goes_on(scheduler, trial(scheduler, "good"), 20.0, 2.0)
    plain = trial(scheduler, "plain", lr=1.0)
    assert goes_on(scheduler, plain, 20.0, 1.0) and goes_on(scheduler, plain, 40.0, 0.0)


def test_rungs_outlive_the_driver(watch: SimpleNamespace) -> None:
    scheduler = halving()
    for number in range(4):
        goes_on(scheduler, trial(scheduler, str(number)), 20.0, float(number))
    again = halving()
    assert not goes_on(again, trial(again, "new"), 20.0, 1.0)
    assert goes_on(again, trial(again, "newer"), 20.0, 3.0)
