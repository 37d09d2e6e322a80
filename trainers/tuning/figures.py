"""What a sweep found, as Optuna draws it: its trials over their settings, over training, and one after the other."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import optuna
from matplotlib import pyplot as plt
from matplotlib import rc_context
from matplotlib.figure import Figure
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState
from optuna.visualization import matplotlib as drawn

from multicse.trainers.tuning.trials import Trial, short_names, show, varied

FEWEST = 8
"""Trials without which importance is not estimated."""
DECADES = 30.0
"""Numbers whose largest is so many times their least are drawn, and counted, as logarithms; learning rates always are."""

Defaults = Mapping[str, Mapping[str, Any]]
"""Pipeline -> dotted path -> the value of the recipe as it stands."""


@contextmanager
def sweep_figures(
    trials: Sequence[Trial], metric: str, defaults: Defaults
) -> Iterator[tuple[list[tuple[str, Figure]], list[str]]]:
    """The figures of a sweep by name, those of each pipeline by itself, and a line with the reason for each left out.

    Trials that failed or have no score are left out of all. What matplotlib's style was before it is again afterwards, and
    the figures are closed.
    """
    pipelines = list(dict.fromkeys(trial.pipeline for trial in trials))
    figures: list[tuple[str, Figure]] = []
    left_out: list[str] = []
    with rc_context({"savefig.bbox": "tight", "figure.figsize": (8, 5)}), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        for pipeline in pipelines:
            for name, draw in _drawings(trials, metric, pipeline, defaults.get(pipeline, {})).items():
                full = f"{name}_{pipeline}" if len(pipelines) > 1 else name
                try:
                    figures.append((full, draw()))
                except ValueError as error:
                    left_out.append(f"{full}: {error}")
        yield figures, left_out
    for _, figure in figures:
        plt.close(figure)


def _drawings(
    trials: Sequence[Trial], metric: str, pipeline: str, own: Mapping[str, Any]
) -> dict[str, Callable[[], Figure]]:
    make = partial(study, trials, pipeline, own)
    return {
        "parallel_coordinates": lambda: _figure(drawn.plot_parallel_coordinate, make(), 2, target_name=metric),
        "parameter_importance": lambda: _importance(make(logarithms=True), metric),
        "score_against": lambda: _figure(drawn.plot_slice, make(), 1, target_name=metric),
        "best_so_far": lambda: _figure(drawn.plot_optimization_history, make(), 0, target_name=metric),
        "learning_curves": lambda: _figure(drawn.plot_intermediate_values, make(), 0),
    }


def study(trials: Sequence[Trial], pipeline: str, own: Mapping[str, Any], logarithms: bool = False) -> optuna.Study:
    """The trials of one pipeline with a score as a study of Optuna's; the others are failed ones, so that numbers are kept.

    own: the values of the recipe as it stands, of what trials vary.
    logarithms: in place of numbers that span decades, for what does not look at the distribution's scale.
    """
    shown = [trial for trial in trials if trial.pipeline == pipeline and trial.ended and trial.scored]
    columns: dict[str, list[Any]] = {
        path: [trial.changes.get(path, own.get(path)) for trial in shown] for path in varied(shown)
    }
    names = short_names(list(columns))
    distributions: dict[str, BaseDistribution] = {}
    rows: list[dict[str, Any]] = [{} for _ in shown]
    for path, values in columns.items():
        distribution = _distribution(path, values)
        if isinstance(distribution, CategoricalDistribution):
            values = [show(value) for value in values]
        elif distribution.log and logarithms:
            values = [math.log10(value) for value in values]
            distribution = FloatDistribution(min(values), max(values))
        distributions[names[path]] = distribution
        for row, value in zip(rows, values, strict=True):
            row[names[path]] = value
    params = {trial.number: row for trial, row in zip(shown, rows, strict=True)}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = optuna.create_study(direction="maximize")
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.number in params:
            one = optuna.create_trial(
                params=params[trial.number],
                distributions=distributions,
                value=trial.score,
                intermediate_values=dict(trial.points),
            )
        else:
            one = optuna.create_trial(state=TrialState.FAIL)
        found.add_trial(one)
    return found


def _distribution(path: str, values: Sequence[Any]) -> Any:
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return CategoricalDistribution(list(dict.fromkeys(show(value) for value in values)))
    low, high = min(values), max(values)
    return FloatDistribution(low, high, log=low > 0 and (path.endswith(".lr") or high / low >= DECADES))


def _figure(draw: Callable[..., Any], of: optuna.Study, least: int, **settings: Any) -> Figure:
    """Raises ValueError for less than `least` varied settings, or no trial."""
    complete = of.get_trials(states=(TrialState.COMPLETE,))
    if not complete:
        raise ValueError("no trial has ended with a score")
    if (varies := len(complete[0].params)) < least:
        raise ValueError(f"needs {least} varied settings, got {varies}")
    axes = draw(of, **settings)
    return next(iter(axes.flat)).figure if hasattr(axes, "flat") else axes.figure


def _importance(of: optuna.Study, metric: str) -> Figure:
    """fANOVA (Hutter, Hoos and Leyton-Brown, ICML 2014)."""
    complete = of.get_trials(states=(TrialState.COMPLETE,))
    if len(complete) < FEWEST:
        raise ValueError(f"needs at least {FEWEST} trials with a score, got {len(complete)}")
    if len({trial.value for trial in complete}) == 1:
        raise ValueError(f"all trials have the score {show(complete[0].value)}, so no setting matters")
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return _figure(drawn.plot_param_importances, of, 2, evaluator=evaluator, target_name=metric)
