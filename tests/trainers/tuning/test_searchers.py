"""Trials after a kill: none twice, none missing, none waited for, and Optuna's draws those of a sweep that was not cut."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Experiment, Trial
from ray.tune.search import SearchAlgorithm
from ray.tune.search.optuna import OptunaSearch

from trainers.tuning.searchers import Listed, SeededTPE, Studied

TRIALS = 12
SPACE = {
    "trial": {
        "lr": tune.loguniform(1e-5, 1e-1),
        "filters": tune.choice([(3, 4), (5, 6), None]),
        "layers": tune.randint(1, 9),
    }
}
OWN = {"trial/lr": 1e-3, "trial/filters": (5, 6), "trial/layers": 4}
TORN = [
    (2, 3, 1),
    (3, 2, 0),
    (3, 3, 2),
    (2, 4, 3),
    (1, 1, 0),
    (7, 8, 8),
    (8, 7, 7),
    (8, 8, 6),
    (12, 12, 11),
    (12, 11, 11),
    (1, 9, 8),
]
"""Trials that were made when the file of what proposes them was written, and that the file of trials has, and that ended."""


def run(config: dict[str, Any]) -> None:
    """What Tune would run."""


def score(trial: Any) -> float:
    config = trial.config["trial"]
    return -abs(math.log10(config["lr"]) + 2) - config["layers"] / 10 + (config["filters"] is None)


def ready(algorithm: SearchAlgorithm, space: dict[str, Any] | None = None) -> SearchAlgorithm:
    algorithm.add_configurations([Experiment("x", run=run, config=space, num_samples=1 if space else TRIALS)])
    return algorithm


def listed() -> SearchAlgorithm:
    numbers = [{"lr": 10.0**-number, "layers": number, "filters": None} for number in range(TRIALS)]
    return ready(Listed(max_concurrent=2), {"trial": tune.grid_search(numbers)})


def search() -> OptunaSearch:
    sampler = SeededTPE(3, n_startup_trials=4, constant_liar=True)
    return OptunaSearch(space=SPACE, metric="best", mode="max", points_to_evaluate=[dict(OWN)], sampler=sampler)


def studied() -> SearchAlgorithm:
    return ready(Studied(search, 2))


def end(algorithm: SearchAlgorithm, trial: Any) -> None:
    algorithm.on_trial_complete(trial.trial_id, {"best": score(trial), "training_iteration": 1})


def followed(algorithm: SearchAlgorithm, live: list[Any]) -> list[Any]:
    """The trials that are made from now on; each is made when all before it ended."""
    made = []
    for _ in range(4 * TRIALS):
        while live:
            end(algorithm, live.pop(0))
        if (trial := algorithm.next_trial()) is not None:
            made.append(trial)
            live.append(trial)
    assert algorithm.is_finished()
    return made


def stored(folder: Path, algorithm: SearchAlgorithm, made: int, known: int, ended: int) -> list[Any]:
    """Tune's files, the one of the trials not in their order; the trials that it has."""
    trials = list[Trial]()

    def upto(count: int) -> None:
        while len(trials) < count:
            for trial in trials[-1:]:
                end(algorithm, trial)
            trials.append(algorithm.next_trial())

    upto(made)
    algorithm.save_to_dir(str(folder), "2026-01-01_00-00-00")
    upto(known)
    data = []
    for number, trial in enumerate(trials[:known]):
        trial.status = "TERMINATED" if number < ended else "RUNNING"
        if number < ended:
            trial.run_metadata.last_result = {"best": score(trial), "training_iteration": 1}
        data.append(trial.get_json_state())
    (folder / "experiment_state-2026-01-01_00-00-00.json").write_text(json.dumps({"trial_data": data[::-1]}))
    return trials[:known]


@pytest.mark.parametrize("make", [listed, studied])
@pytest.mark.parametrize(("made", "known", "ended"), TORN)
def test_each_trial_is_made_once_whatever_a_killed_driver_leaves(
    make: Callable[[], SearchAlgorithm], made: int, known: int, ended: int, tmp_path: Path
) -> None:
    expected = [trial.config for trial in followed(make(), [])]
    assert len(expected) == TRIALS
    trials = stored(tmp_path, make(), made, known, ended)
    assert [trial.config for trial in trials] == expected[:known]
    again = make()
    again.restore_from_dir(str(tmp_path))
    assert [trial.config for trial in followed(again, trials[ended:])] == expected[known:]


@pytest.mark.parametrize("make", [listed, studied])
def test_what_runs_after_a_restart_counts_among_those_at_a_time(make: Callable[[], SearchAlgorithm], tmp_path: Path) -> None:
    first, second = stored(tmp_path, make(), 1, 2, 0)
    again = make()
    again.restore_from_dir(str(tmp_path))
    assert again.next_trial() is None
    end(again, second)
    assert again.next_trial() is not None and again.next_trial() is None
    end(again, first)
    assert again.next_trial() is not None


def test_optuna_begins_with_the_recipe_and_learns() -> None:
    made = followed(studied(), [])
    assert made[0].config["trial"] == {"lr": 1e-3, "filters": (5, 6), "layers": 4}
    assert len({json.dumps(trial.config) for trial in made}) == TRIALS
    drawn, proposed = ([score(trial) for trial in part] for part in (made[1:4], made[4:]))
    assert max(proposed) > max(drawn)
