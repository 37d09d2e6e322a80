"""Conversion of a sweep's trials to an Optuna study, from which trials are sampled and figures are drawn."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import optuna
from matplotlib import pyplot as plt
from matplotlib import rc_context
from matplotlib.figure import Figure
from optuna.samplers import BaseSampler
from optuna.trial import TrialState
from optuna.visualization import matplotlib as drawn
from ray.tune.search.sample import Domain

from multicse.trainers.tuning.domains import distribution, param_of
from multicse.trainers.tuning.trials import Trial

FEWEST = 8
"""Minimum number of trials for an estimate of parameter importance."""


def study(
    trials: Iterable[Trial], space: Mapping[str, Domain], own: Mapping[str, Any], sampler: BaseSampler | None = None
) -> optuna.Study:
    """Convert trials, in order of their number, to a study.

    A trial with values outside the space, as the recipe may have, is added without parameters. `own` are the values of the
    recipe itself.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {path: distribution(domain) for path, domain in space.items()}
    found = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in trials:
        values, state = {**own, **trial.changes}, TrialState.RUNNING
        if trial.ended:
            state = TrialState.FAIL if trial.score is None else TrialState.COMPLETE
        outcome: dict[str, Any] = {
            "state": state,
            "value": trial.score if trial.ended else None,
            "intermediate_values": {step: score for step, score in trial.curve if math.isfinite(score)},
        }
        try:
            params = {path: param_of(domain, values[path]) for path, domain in space.items()}
            one = optuna.create_trial(params=params, distributions=distributions, **outcome)
        except (TypeError, ValueError):
            one = optuna.create_trial(**outcome)
        found.add_trial(one)
    return found


def sweep_figures(found: optuna.Study, metric: str, keep: Callable[[str, Figure], None]) -> None:
    """Draw the figures of a study, if it contains a score, and call `keep` with the name of each figure and the figure."""
    drawings: dict[str, Callable[[], Any]] = {
        "parallel_coordinates": lambda: drawn.plot_parallel_coordinate(found, target_name=metric),
        "score_against": lambda: drawn.plot_slice(found, target_name=metric),
        "best_so_far": lambda: drawn.plot_optimization_history(found, target_name=metric),
        "learning_curves": lambda: drawn.plot_intermediate_values(found),
    }
    scored = found.get_trials(states=(TrialState.COMPLETE,))
    inside = [trial for trial in scored if trial.params]
    if len(inside) >= FEWEST:
        names = [*inside[0].params]  # otherwise Optuna before 5 takes those that all trials have, also the ones outside
        drawings["parameter_importance"] = lambda: drawn.plot_param_importances(found, params=names, target_name=metric)
    with rc_context({"savefig.bbox": "tight", "figure.figsize": (8, 5)}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about experimental figures, and trials outside the space
        for name, make in drawings.items() if scored else ():
            axes = make()
            figure = next(iter(axes.flat)).figure if hasattr(axes, "flat") else axes.figure
            keep(name, figure)
            plt.close(figure)
