"""What proposes the trials of a sweep, so that a killed driver loses none and has none made twice.

Tune writes its trials and what proposes them as two files. When it is killed between them, or while it sends them to a
store, they are of different moments: trials would be made twice or never, or ended ones waited for. Here the file of trials
decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, SearchGenerator
from ray.tune.search.optuna import OptunaSearch

STATE = "experiment_state-"
"""How the names of Tune's files of trials begin; the newest is the last by name."""


@dataclass(frozen=True)
class Known:
    """A trial as Tune stored it."""

    trial_id: str
    number: int
    """In the order in which they were made."""
    ended: bool
    """And is not run again. One that failed is."""
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    """Its last one; empty before the first."""


def known_trials(folder: Path | str) -> list[Known]:
    """The trials in Tune's newest file of them, in the order in which they were made."""
    newest = max(Path(folder).glob(f"{STATE}*.json"))
    stored = [(json.loads(trial), json.loads(run)) for trial, run in json.loads(newest.read_text())["trial_data"]]
    known = [
        Known(
            trial_id=trial["trial_id"],
            number=int(trial["experiment_tag"].partition("_")[0]),
            ended=trial["status"] == "TERMINATED",
            config=trial["config"],
            result=run["last_result"],
        )
        for trial, run in stored
    ]
    return sorted(known, key=lambda trial: trial.number)


class Listed(BasicVariantGenerator):
    """Trials of a list, each made once."""

    _begun: frozenset[str] = frozenset()

    def restore_from_dir(self, dirpath: str) -> None:
        super().restore_from_dir(dirpath)
        known = known_trials(dirpath)
        self._begun = frozenset(trial.trial_id for trial in known)
        self._live_trials = {trial.trial_id for trial in known if not trial.ended}
        self._finished = False
        for iterator in self._iterators:  # from the beginning; `next_trial` leaves out what there is
            iterator.variants, iterator.counter, iterator.num_samples_left = None, 0, iterator.num_samples

    def next_trial(self) -> Any:
        while True:
            live = set(self._live_trials)
            trial = super().next_trial()
            if trial is None or trial.trial_id not in self._begun:
                return trial
            self._live_trials = live


class Studied(SearchGenerator):
    """Trials that Optuna proposes. After a restart its study is made again from the trials that Tune knows.

    Args:
        search: makes the search with an empty study.
        at_once: trials at a time.
    """

    def __init__(self, search: Callable[[], OptunaSearch], at_once: int) -> None:
        super().__init__(ConcurrencyLimiter(search(), at_once))
        self._search, self._at_once = search, at_once

    def restore_from_dir(self, dirpath: str) -> None:
        super().restore_from_dir(dirpath)
        known = known_trials(dirpath)
        search = self._search()
        limited = ConcurrencyLimiter(search, self._at_once)
        limited.live_trials = {trial.trial_id for trial in known if not trial.ended}
        limited.num_unfinished_live_trials = len(limited.live_trials)
        self.searcher, self._counter, self._finished = limited, len(known), False
        for trial in known:
            _told(search, trial)


def _told(search: OptunaSearch, trial: Known) -> None:
    """Have the study hold a trial as if it had proposed it, and its score if it ended."""
    study: Study = search._ot_study
    if not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):  # one that it is asked for anyway
        study.enqueue_trial({name: _value(name, space, trial.config) for name, space in search._space.items()})
    search.suggest(trial.trial_id)
    if trial.ended:
        search.on_trial_complete(trial.trial_id, dict(trial.result))


def _value(name: str, space: BaseDistribution, config: Any) -> Any:
    """A trial's value of one parameter, ``trial/changes/simcse/optim.text.lr``; of a choice the very one, since a tuple is
    stored as a list."""
    for key in name.split("/"):
        config = config[key]
    if isinstance(space, CategoricalDistribution):
        return next(choice for choice in space.choices if json.dumps(choice) == json.dumps(config))
    return config


class SeededTPE(BaseSampler):
    """TPE (Bergstra et al., 2011) whose draws depend on the seed, the trial's number and what is known by then alone, so
    that a sweep that was interrupted goes on as it would have gone on.

    Args:
        seed: of all draws.
        settings: of `optuna.samplers.TPESampler`.
    """

    def __init__(self, seed: int, **settings: Any) -> None:
        self._seed, self._settings = seed, settings
        self._tpe = TPESampler(**settings)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        seed = np.random.SeedSequence([self._seed % 2**32, trial.number]).generate_state(1)
        self._tpe = TPESampler(seed=int(seed[0]), **self._settings)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._tpe.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        return self._tpe.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)
