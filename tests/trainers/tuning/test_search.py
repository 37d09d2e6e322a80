"""Trials after the driver was killed (none repeated, none missing), and decisions of ASHA."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray import tune

from multicse.pipelines.visualcse import demo
from multicse.trainers.engine.tracking import RunHandle
from multicse.trainers.tuning import search as engine
from multicse.trainers.tuning.search import Progress, Search, TrialEnds, make_scheduler
from multicse.trainers.tuning.sweep import Sweep, count
from multicse.trainers.tuning.trial import PERCENT, Budget, Plan
from multicse.trainers.tuning.trials import Records, Trial

RUNG = 60.0
WEIGHT, RATE, LOSS = "method.image.weight", "optim.text.lr", "method.image.loss"
SPACE = {
    RATE: tune.loguniform(1e-5, 1e-1),
    LOSS: tune.choice(["supcon", "simclr"]),
    "streams.text.batch_size": tune.randint(1, 99),
}
GRID = {WEIGHT: tune.grid_search([0.1, 1.0, 10.0]), LOSS: tune.choice(["supcon", "simclr"])}


def sweep(searcher: Any = "optuna", space: dict[str, Any] = SPACE, trials: int | None = 12) -> Sweep:
    return Sweep(pipeline="visualcse", recipe=demo(), space=space, searcher=searcher, trials=trials, seeds=(3,))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sweep], Search]:
    """Return a new driver of a sweep, which reads the records of earlier drivers."""
    monkeypatch.setattr(engine, "end_runs", lambda *_: None)
    plan = Plan(sweep="s", as_it_stands="", folder=str(tmp_path), experiment="", parent="", seeds=(3,))
    return lambda made: Search(made, plan, RunHandle("", ""), Records(str(tmp_path / "trials")), 2)


def end(search: Search, made: Any, **result: Any) -> None:
    """Report the end of a trial as Tune does, with a score that depends on the learning rate."""
    score = -abs(math.log10(made.config.get(RATE, 1e-3)) + 2)
    search.on_trial_result(made.trial_id, {"step": 5, "score": score})
    made = SimpleNamespace(trial_id=made.trial_id, last_result={"best": score, "step": 5, "steps": 5, "seeds": 1, **result})
    TrialEnds(search).on_trial_complete(0, [], made)


@pytest.mark.parametrize("searcher", ["optuna", "random", "grid"])
@pytest.mark.parametrize("kills", [[1, 1, 0, 3], [12]])
def test_each_trial_is_created_once_however_often_the_driver_is_killed(
    searcher: str, kills: list[int], driver: Callable[[Sweep], Search]
) -> None:
    made = sweep(searcher, GRID if searcher == "grid" else SPACE, None if searcher == "grid" else 12)
    ended: list[str] = []
    begun: dict[str, dict[str, Any]] = {}
    for enough in [*kills, 99]:
        search, live = driver(made), list[Any]()
        assert [one.trial_id for one in search.trials.values() if one.ended] == sorted(ended)
        while len(live) < 2 and (trial := search.next_trial()) is not None:
            assert begun.setdefault(trial.trial_id, trial.config) == trial.config
            live.append(trial)
            if len(live) == 2 and enough:
                enough -= 1
                end(search, live[0])
                ended.append(live.pop(0).trial_id)
    while live:
        end(search, live[0])
        ended.append(live.pop(0).trial_id)
    assert search.is_finished() and len(begun) == len(ended) == len(set(ended)) == count(made)
    assert search.trials[0].changes == {} and not driver(made).todo


def test_a_failed_trial_is_run_again_by_the_next_driver(driver: Callable[[Sweep], Search], tmp_path: Path) -> None:
    search = driver(sweep())
    trial = search.next_trial()
    assert trial is not None
    (file := tmp_path / "error.txt").write_text("here\nValueError: diverged\n")
    failed = SimpleNamespace(trial_id=trial.trial_id, last_result=None, error_file=str(file))
    TrialEnds(search).on_trial_error(0, [], failed)
    again = driver(sweep())
    assert again.trials[0].status == "failed" and again.trials[0].error == "ValueError: diverged" and 0 in again.todo


def test_an_incomplete_record_is_not_read(tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    whole = Trial(number=1, trial_id="abc_00001", changes={RATE: 0.1}, status="stopped", curve=((1, math.nan),))
    records.write(whole)
    (tmp_path / "abc_00002.json.part").write_text("{")
    (tmp_path / "another_00001.json").write_text("{}")
    (found,) = records.read("abc").values()
    assert found.changes == whole.changes and found.status == "stopped" and found.curve[0][0] == 1


def test_random_draws_cover_the_space(driver: Callable[[Sweep], Search]) -> None:
    search = driver(sweep("random"))
    drawn = [search.propose(number) for number in range(1, 201)]
    assert drawn == [driver(sweep("random")).propose(number) for number in range(1, 201)]
    rates = np.log10([values[RATE] for values in drawn])
    assert rates.min() > -5 and rates.max() < -1 and abs(rates.mean() + 3) < 0.3  # uniform in the logarithm
    assert 70 < sum(LOSS in values for values in drawn) < 130  # the others have the recipe's loss


def test_optuna_learns(driver: Callable[[Sweep], Search]) -> None:
    search = driver(sweep(trials=30))
    while (trial := search.next_trial()) is not None:
        end(search, trial)
    scores = [one.best or 0.0 for one in search.trials.values()]
    assert np.mean(scores[15:]) > np.mean(scores[1:8])


def test_a_grid_is_every_combination_once(driver: Callable[[Sweep], Search]) -> None:
    search = driver(sweep("grid", GRID, None))
    own = {WEIGHT: demo().method.image.weight, LOSS: demo().method.image.loss}  # type: ignore[attr-defined]
    values = [own | search.propose(number) for number in range(search.total_samples)]
    assert own == values[0] and len(values) == 6  # the recipe is a point of the grid and is not run twice
    assert len({tuple(point.values()) for point in values}) == 6


def test_asha_continues_the_best_third() -> None:
    asha = make_scheduler(sweep())
    assert asha is not None
    trials = [SimpleNamespace(trial_id=str(number)) for number in range(5)]
    decided = []
    for trial, score in zip(trials, (3.0, 1.0, 2.0, 5.0, 2.9), strict=True):
        asha.on_trial_add(None, trial)
        assert asha.on_trial_result(None, trial, {PERCENT: RUNG - 1, "score": -score}) == asha.CONTINUE
        decided.append(asha.on_trial_result(None, trial, {PERCENT: RUNG, "score": score}))
        assert asha.on_trial_result(None, trial, {PERCENT: 0.0, "score": 0.0}) == asha.CONTINUE  # at the end of the trial
    # The first cannot be compared; the last is below 3, the threshold of the best third of four.
    assert [word == asha.CONTINUE for word in decided] == [True, False, False, True, False]


def test_asha_is_restored_by_a_new_driver() -> None:
    def known(number: int, status: Any, last: int) -> Trial:
        curve = ((300, 9.0), (round(10 * RUNG), float(number)), (last, 0.0))
        changes = {RATE: 0.1} if number else {}
        return Trial(number=number, trial_id=str(number), changes=changes, status=status, steps=1000, curve=curve)

    # Scores at the rung: 1 to 5; the unchanged recipe is not judged.
    trials = [known(0, "finished", 1000), known(1, "stopped", 600), known(2, "finished", 1000), known(3, "failed", 700)]
    trials += [known(4, "running", 800), known(5, "running", 900)]
    asha = make_scheduler(sweep(), trials)
    assert asha is not None
    # The running trials have passed the rung: their next, worse score is not their score at the rung, and lowers no bar.
    for name, percent, score, word in (
        *(("4", 90.0, 0.5, asha.CONTINUE), ("5", 95.0, 0.0, asha.CONTINUE)),
        *(("new", RUNG, 3.5, asha.STOP), ("newer", RUNG, 4.5, asha.CONTINUE)),
    ):
        asha.on_trial_add(None, trial := SimpleNamespace(trial_id=name))
        assert asha.on_trial_result(None, trial, {PERCENT: percent, "score": score}) == word, name


@pytest.mark.parametrize(("judged", "percent"), [(True, [25.0, 50.0, 75.0, 0.0]), (False, [0.0] * 4)])
def test_schedulers_do_not_judge_the_unchanged_recipe_or_ends(judged: bool, percent: list[float]) -> None:
    budget = Budget(2, steps=10, judged=judged)
    found = []
    for _ in range(2):
        found += [budget.report({"step": step, "score": 1.0})[PERCENT] for step in (5, 10)]
        budget.done.append(1.0)
    assert found == percent


def test_the_progress_line_names_running_trials_and_the_best_score(
    driver: Callable[[Sweep], Search], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = driver(sweep(trials=4))
    monkeypatch.setattr(engine.time, "monotonic", lambda: 1000.0)
    line = Progress(search)
    first, second = search.next_trial(), search.next_trial()
    assert first is not None and second is not None
    search.on_trial_result(second.trial_id, {"step": 3, "steps": 5, "best": 47.948, "seeds": 1, "score": 47.948})
    assert line.should_report([])
    line.report([], False)
    assert capsys.readouterr().out == "trials 0/4  trial 0 starting  trial 1 step 3/5  lee-dev/spearman 47.95 (trial 1)\n"
    assert not line.should_report([]), "30 seconds have not passed"
    end(search, first)
    monkeypatch.setattr(engine.time, "monotonic", lambda: 1030.0)
    assert line.should_report([]) and not line.should_report([], done=True), "the table follows"
    line.report([], False)
    assert capsys.readouterr().out == "trials 1/4  trial 1 step 3/5  lee-dev/spearman 47.95 (trial 1)\n"
