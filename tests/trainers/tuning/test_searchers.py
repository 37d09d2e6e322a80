"""Trials after a kill: none twice, none missing, none waited for, and Optuna's draws those of a sweep that was not cut."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial

from multicse.trainers.tuning.searchers import Listed, Once, Proposals, Studied

TRIALS = 12
SPACE = {"lr": tune.loguniform(1e-5, 1e-1), "filters": tune.choice([(3, 4), (5, 6), None]), "layers": tune.randint(1, 9)}
OWN = {"pipeline": "a", "changes": {"a": {"lr": 1e-3, "filters": (5, 6), "layers": 4}}}


def run(config: dict[str, Any]) -> None:
    """What Tune would run."""


def score(trial: Trial) -> float:
    values = trial.config["trial"]["changes"]["a"]
    return -abs(math.log10(values["lr"]) + 2) - values["layers"] / 10 + (values["filters"] is None)


def listed() -> Proposals:
    return Listed(
        [
            {"pipeline": "a", "changes": {"a": {"lr": 10.0**-number, "layers": number, "filters": None}}}
            for number in range(TRIALS)
        ]
    )


def studied() -> Proposals:
    return Studied({"a": SPACE}, [OWN], 3, n_startup_trials=4, constant_liar=True)


@pytest.fixture
def experiment(tmp_path: Path) -> tune.Experiment:
    return tune.Experiment("x", run, storage_path=str(tmp_path))


def end(search: Once, trial: Trial) -> None:
    search.on_trial_complete(trial.trial_id, {"best": score(trial)})


def followed(search: Once, live: list[Trial]) -> list[Any]:
    """The settings of the trials that are made from now on; each is made when all before it ended."""
    made = []
    while live or not search.is_finished():
        for trial in live:
            end(search, trial)
        live = [trial] if (trial := search.next_trial()) else []
        made += [trial.config["trial"] for trial in live]
    return made


@pytest.mark.parametrize("make", [listed, studied])
@pytest.mark.parametrize(("known", "ended"), [(1, 0), (8, 6), (12, 12)])
def test_each_trial_is_made_once_whatever_a_killed_driver_leaves(
    make: Callable[[], Proposals], known: int, ended: int, experiment: tune.Experiment
) -> None:
    expected = followed(Once(experiment, make(), TRIALS, 2), [])
    assert len(expected) == TRIALS
    first, trials = Once(experiment, make(), TRIALS, 2), list[Trial]()
    for _ in range(known):
        for trial in trials[-1:]:
            end(first, trial)
        trials.append(first.next_trial())
    for number, trial in enumerate(trials):  # as Tune's file has them: in any order, tuples as lists
        trial.set_config(json.loads(json.dumps(trial.config)))
        trial.set_status(Trial.TERMINATED if number < ended else Trial.RUNNING)
        trial.run_metadata.last_result = {"best": score(trial)}
    again = Once(experiment, make(), TRIALS, 2, known=trials[::-1])
    assert followed(again, trials[ended:]) == expected[known:]


def test_what_runs_after_a_restart_counts_among_those_at_a_time(experiment: tune.Experiment) -> None:
    before = Once(experiment, listed(), TRIALS, 2)
    first, second = before.next_trial(), before.next_trial()
    again = Once(experiment, listed(), TRIALS, 2, known=[first, second])
    assert again.next_trial() is None
    end(again, second)
    assert again.next_trial() is not None and again.next_trial() is None


def test_optuna_begins_with_the_recipe_and_learns(experiment: tune.Experiment) -> None:
    search, made = Once(experiment, studied(), TRIALS, 1), list[Trial]()
    while (trial := search.next_trial()) is not None:
        end(search, trial)
        made.append(trial)
    assert made[0].config["trial"] == OWN
    assert len({json.dumps(trial.config) for trial in made}) == TRIALS
    assert max(map(score, made[4:])) > max(map(score, made[1:4]))
