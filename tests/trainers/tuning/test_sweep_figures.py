"""Trials as records, and as the study that Optuna draws."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
import numpy as np

from multicse.trainers.tuning.figures import study, sweep_figures
from multicse.trainers.tuning.trials import Status, Trial, best_trial, ranked

METRIC = "lee-dev/spearman"
RATE, WEIGHT, LOSS = "optim.text.lr", "method.image.weight", "method.image.loss"
OWN = {RATE: 1e-4, WEIGHT: 0.5, LOSS: None, "run.seed": 0}
NAMES = ("parallel_coordinates", "parameter_importance", "score_against", "best_so_far", "learning_curves")


def trial(number: int, score: float | None, status: Status = "finished", **kept: Any) -> Trial:
    """A trial whose curve rises to its score in three evaluations."""
    changes = kept.pop("changes", {})
    curve = () if score is None else tuple((step, score - 8 + step) for step in (2, 4, 8))
    given: dict[str, Any] = {"pipeline": "visualcse", "step": 8, "steps": 16, "curve": curve} | kept
    return Trial(number=number, changes=changes, status=status, best=score, **given)


def many(n: int = 16, **kept: Any) -> list[Trial]:
    """A rate whose decades explain the score, a weight that does not, and failed trials among them."""
    draw = np.random.default_rng(1)
    found = [trial(0, 46.0, **kept)]
    for number in range(1, n):
        rate, weight = 10 ** draw.uniform(-6, -1), draw.uniform(0.1, 0.4)
        changes = {RATE: rate, WEIGHT: weight, LOSS: ["supcon", "simclr"][number % 2]}
        status: Status = "failed" if number in (3, 4) else "stopped" if number % 3 else "finished"
        found.append(trial(number, 50 + math.log10(rate), status, changes=changes, **kept))
    return found


def test_ranked_by_seeds_then_score() -> None:
    trials = [trial(0, 40.0), trial(1, 44.0), trial(2, 44.0, "stopped"), trial(3, 99.0, "failed"), trial(4, math.nan)]
    assert [one.number for one in ranked(trials)] == [1, 2, 0]
    several = trial(5, 41.0, seeds=3)
    assert best_trial([*trials, several]) is several and best_trial(trials[3:]) is None
    assert math.isnan(trials[4].best or 0) and not trials[4].scored


def test_a_trial_logs_its_best_score() -> None:
    assert trial(7, 44.0, changes={RATE: 3.14e-6}).metrics(METRIC) == {f"best/{METRIC}": 44.0}
    assert trial(1, -0.5).metrics("-mlm-dev/loss") == {"best/mlm-dev/loss": 0.5}


def test_a_study_holds_numbers_scores_curves_and_the_recipes_own_values() -> None:
    trials = [*many(6), trial(6, 45.0, "running"), trial(7, 41.0, pipeline="audiocse")]
    found = study(trials, "visualcse", OWN).trials
    assert [one.state.name for one in found] == ["COMPLETE"] * 3 + ["FAIL"] * 2 + ["COMPLETE"] + ["FAIL"] * 2
    assert [one.number for one in found] == list(range(8))
    assert found[0].params == {"text.lr": 1e-4, "image.weight": 0.5, "image.loss": "None"} and found[0].value == 46.0
    assert found[1].intermediate_values == dict(trials[1].curve)


def test_all_figures_of_a_sweep() -> None:
    before = dict(matplotlib.rcParams)
    with sweep_figures(many(), METRIC, {"visualcse": OWN}) as (figures, left_out):
        assert [name for name, _ in figures] == list(NAMES) and not left_out
        drawn = dict(figures)
        (importance,) = drawn["parameter_importance"].axes
        widths = [bar.get_window_extent().width for bar in importance.patches]
        names = [label.get_text() for label in importance.get_yticklabels()]
        assert names[widths.index(max(widths))] == "text.lr" and max(widths) > 0.9 * sum(widths)
        scales = {axes.get_xlabel(): axes.get_xscale() for axes in drawn["score_against"].axes}
        assert scales["text.lr"] == "log" and scales["image.weight"] == "linear"
        assert len(drawn["learning_curves"].axes[0].lines) == 14
    assert dict(matplotlib.rcParams) == before


def test_learning_rates_are_logarithms_however_near_they_are() -> None:
    near = [trial(n, 40.0 + n, changes={RATE: 1e-4 * n, WEIGHT: 0.1 * n}) for n in range(1, 9)]
    with sweep_figures(near, METRIC, {"visualcse": OWN}) as (figures, _):
        scales = {axes.get_xlabel(): axes.get_xscale() for axes in dict(figures)["score_against"].axes}
    assert scales["text.lr"] == "log" and scales["image.weight"] == "linear"
    weighed = study(near, "visualcse", OWN, logarithms=True).trials  # what importance is estimated on
    assert weighed[-1].params["text.lr"] == math.log10(8e-4) and weighed[-1].params["image.weight"] == 0.1 * 8


def test_each_pipeline_has_its_figures_and_what_cannot_be_drawn_is_left_out_with_the_reason() -> None:
    few = [trial(16, 41.0, pipeline="audiocse"), trial(17, 42.0, changes={RATE: 1e-3}, pipeline="audiocse")]
    with sweep_figures([*many(), *few], METRIC, {"visualcse": OWN, "audiocse": OWN}) as (figures, left_out):
        names = [name for name, _ in figures]
    assert names == [*(f"{name}_visualcse" for name in NAMES), *(f"{name}_audiocse" for name in NAMES[2:])]
    assert [line.partition(":")[0] for line in left_out] == [f"{name}_audiocse" for name in NAMES[:2]]
