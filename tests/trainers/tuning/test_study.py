"""Conversion of trials to an Optuna study, and the figures of a sweep."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
import numpy as np
from ray import tune

from multicse.trainers.tuning.study import study, sweep_figures
from multicse.trainers.tuning.trials import Status, Trial, ranked

METRIC = "lee-dev/spearman"
RATE, WEIGHT, LOSS = "optim.text.lr", "method.image.weight", "method.image.loss"
SPACE = {RATE: tune.loguniform(1e-6, 1e-1), WEIGHT: tune.uniform(0.1, 0.4), LOSS: tune.choice([None, "supcon", "simclr"])}
OWN = {RATE: 1e-4, WEIGHT: 0.5, LOSS: None}
NAMES = {"parallel_coordinates", "parameter_importance", "score_against", "best_so_far", "learning_curves"}


def trial(number: int, score: float | None, status: Status = "finished", **kept: Any) -> Trial:
    """Return a trial whose curve rises to its score in three evaluations."""
    changes = kept.pop("changes", {})
    curve = () if score is None else tuple((step, score - 8 + step) for step in (2, 4, 8))
    return Trial(number=number, trial_id=str(number), changes=changes, status=status, best=score, curve=curve, **kept)


def many(n: int = 16) -> list[Trial]:
    """Return trials whose score depends on the learning rate but not on a weight, with failed trials among them."""
    draw = np.random.default_rng(1)
    found = [trial(0, 46.0)]
    for number in range(1, n):
        rate, weight = 10 ** draw.uniform(-6, -1), draw.uniform(0.1, 0.4)
        changes = {RATE: rate, WEIGHT: weight, LOSS: ["supcon", "simclr"][number % 2]}
        status: Status = "failed" if number in (3, 4) else "stopped" if number % 3 else "finished"
        found.append(trial(number, 50 + math.log10(rate), status, changes=changes))
    return found


def test_ranked_by_seeds_then_score() -> None:
    trials = [trial(0, 40.0), trial(1, 44.0), trial(2, 44.0, "stopped"), trial(3, 99.0, "failed"), trial(4, math.nan)]
    assert [one.number for one in ranked(trials)] == [1, 2, 0]
    assert ranked([*trials, trial(5, 41.0, seeds=3)])[0].number == 5


def test_a_study_contains_numbers_scores_curves_and_the_recipes_values() -> None:
    trials = [*many(6), trial(6, None, "running", changes={WEIGHT: 0.2})]
    found = study(trials, SPACE, OWN).trials
    assert [one.state.name for one in found] == ["COMPLETE"] * 3 + ["FAIL"] * 2 + ["COMPLETE", "RUNNING"]
    assert found[6].params == {RATE: 1e-4, WEIGHT: 0.2, LOSS: "null"}
    assert found[1].intermediate_values == dict(trials[1].curve)
    assert found[0].value == 46.0 and not found[0].params  # the recipe's weight is outside the space


def test_all_figures_of_a_sweep() -> None:
    before = dict(matplotlib.rcParams)
    drawn = dict[str, Any]()

    def look(name: str, figure: Any) -> None:
        drawn[name] = [(axes.get_xlabel(), axes.get_xscale(), len(axes.lines)) for axes in figure.axes]
        if name == "parameter_importance":
            (importance,) = figure.axes
            widths = [bar.get_window_extent().width for bar in importance.patches]
            names = [label.get_text() for label in importance.get_yticklabels()]
            assert names[widths.index(max(widths))] == RATE

    sweep_figures(study(many(), SPACE, OWN), METRIC, look)
    assert set(drawn) == NAMES
    scales = {label: scale for label, scale, _ in drawn["score_against"]}
    assert scales[RATE] == "log" and scales[WEIGHT] == "linear"
    assert drawn["learning_curves"][0][2] == 14
    assert dict(matplotlib.rcParams) == before
    few = list[str]()
    sweep_figures(study(many(7), SPACE, OWN), METRIC, lambda name, _: few.append(name))
    assert set(few) == NAMES - {"parameter_importance"}
