"""Trials of a list after a kill: none twice, none missing, none waited for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Experiment

from trainers.sweep import Listed

TRIALS = 5


def run(config: dict[str, Any]) -> None:
    """What Tune would run."""


def listed() -> Listed:
    space = {"trial": tune.grid_search([{"n": number} for number in range(TRIALS)])}
    one = Listed(max_concurrent=2)
    one.add_configurations([Experiment("x", run=run, config=space)])
    return one


def stored(folder: Path, made: int, known: int, ended: int) -> list[str]:
    """Tune's files when the generator was written after `made` trials, and the trials when there were `known`, of which
    `ended` had ended. Ids of all trials."""
    first = listed()
    trials: list[Any] = []
    while len(trials) < made:
        trials.append(first.next_trial())
        if len(first._live_trials) == 2 and len(trials) < made:
            first.on_trial_complete(trials[-2].trial_id)
    ids = [f"{first._uuid_prefix}{number:05d}" for number in range(TRIALS)]
    first.save_to_dir(str(folder), "2026-01-01_00-00-00")
    states = ["TERMINATED" if number < ended else "RUNNING" for number in range(known)]
    data = [(json.dumps({"trial_id": ids[number], "status": state}), "{}") for number, state in enumerate(states)]
    (folder / "experiment_state-2026-01-01_00-00-00.json").write_text(json.dumps({"trial_data": data}))
    return ids


@pytest.mark.parametrize(
    ("made", "known", "ended"), [(2, 3, 1), (3, 2, 0), (3, 3, 2), (2, 4, 3), (5, 5, 3), (5, 4, 4), (2, 2, 2)]
)
def test_each_trial_is_made_once_whatever_a_killed_driver_leaves(made: int, known: int, ended: int, tmp_path: Path) -> None:
    ids = stored(tmp_path, made, known, ended)
    again = listed()
    again.restore_from_dir(str(tmp_path))
    live, got = ids[ended:known], []
    for _ in range(4 * TRIALS):
        trial = again.next_trial()
        if trial is not None:
            got.append((trial.trial_id, trial.config["trial"]["n"]))
            live.append(trial.trial_id)
        elif live:
            again.on_trial_complete(live.pop(0))
    assert got == [(ids[number], number) for number in range(known, TRIALS)]
    assert again.is_finished()
