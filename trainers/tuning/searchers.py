"""What proposes the trials of a sweep, so that a killed driver loses none and has none made twice.

Nothing of it is stored: Tune's file of trials says which there are, and what proposes the others is made anew from it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.search import SearchAlgorithm
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.sample import Categorical, Domain

Config = Mapping[str, Any]
"""A trial's pipeline and changes, see `trial.Config`."""
Spaces = Mapping[str, Mapping[str, Domain]]
"""Pipeline -> dotted path -> domain."""


class Listed:
    """Trials of a list."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self.configs = configs

    def propose(self, number: int) -> Config:
        """The settings of the trial of this number, which is one above the last."""
        return self.configs[number]

    def remember(self, config: Config) -> None:
        """Take over a trial of an earlier driver; they come in their order, before anything is proposed."""

    def tell(self, number: int, score: float | None) -> None:
        """What a trial came to; none for one that failed."""


class Studied:
    """Trials that Optuna's TPE (Bergstra et al., 2011) proposes, after some that are given.

    A draw depends on the seed, the trial's number and what is known by then alone, so that a sweep that was interrupted
    goes on as it would have gone on.

    The spaces hold the values of the `first` trials; the settings are those of `optuna.samplers.TPESampler`.
    """

    def __init__(self, spaces: Spaces, first: Sequence[Config], seed: int, **settings: Any) -> None:
        self.first, self.seed, self.settings = first, seed, settings
        self.domains = {f"{pipeline}/{path}": domain for pipeline, space in spaces.items() for path, domain in space.items()}
        self.domains["pipeline"] = tune.choice(list(spaces))
        self.distributions = {name: _distribution(domain) for name, domain in self.domains.items()}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(direction="maximize")

    def propose(self, number: int) -> Config:
        seed = np.random.SeedSequence([self.seed % 2**32, number]).generate_state(1)
        self.study.sampler = optuna.samplers.TPESampler(seed=int(seed[0]), **self.settings)
        if number < len(self.first):
            self.study.enqueue_trial(self._params(self.first[number]))
        trial = self.study.ask(self.distributions)
        assert trial.number == number
        values = {name: _value(domain, trial.params[name]) for name, domain in self.domains.items()}
        changes: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            pipeline, slash, path = name.partition("/")
            if slash:
                changes.setdefault(pipeline, {})[path] = value
        return {"pipeline": values["pipeline"], "changes": changes}

    def remember(self, config: Config) -> None:
        known = optuna.create_trial(state=TrialState.RUNNING, params=self._params(config), distributions=self.distributions)
        self.study.add_trial(known)

    def tell(self, number: int, score: float | None) -> None:
        if score is None or not math.isfinite(score):
            self.study.tell(number, state=TrialState.FAIL)
        else:
            self.study.tell(number, score)

    def _params(self, config: Config) -> dict[str, Any]:
        values = {f"{pipeline}/{path}": value for pipeline, own in config["changes"].items() for path, value in own.items()}
        values["pipeline"] = config["pipeline"]
        chosen = {name for name, domain in self.domains.items() if isinstance(domain, Categorical)}
        return {name: json.dumps(value) if name in chosen else value for name, value in values.items()}


Proposals = Listed | Studied
"""What decides the settings of each trial."""


def _distribution(domain: Domain) -> BaseDistribution:
    """A domain of Tune as Optuna's. Choices are JSON, as Optuna takes neither tuples nor lists."""
    if isinstance(domain, Categorical):
        return CategoricalDistribution([json.dumps(value) for value in domain.categories])
    (found,) = OptunaSearch.convert_search_space({"value": domain}).values()
    return found


def _value(domain: Domain, param: Any) -> Any:
    """A value of Optuna's as the domain has it."""
    if isinstance(domain, Categorical):
        return next(value for value in domain.categories if json.dumps(value) == param)
    return param


def number_of(trial: Trial) -> int:
    """A trial's number in the order in which they were made, which Tune's own list loses when it is restored."""
    found = re.match(r"\d+", trial.experiment_tag)  # PBT adds what it changes
    assert found is not None
    return int(found[0])


class Once(SearchAlgorithm):
    """Makes each trial of a sweep once, `total` in all.

    known: the trials of an earlier driver, in any order. Tune runs again those of them that did not end.
    """

    def __init__(
        self, experiment: tune.Experiment, proposals: Proposals, total: int, at_once: int, known: Sequence[Trial] = ()
    ) -> None:
        self.experiment, self.proposals, self.total, self.at_once = experiment, proposals, total, at_once
        self.made = 0
        self.live: dict[str, int] = {}
        """Trial id -> number of those that have not ended."""
        for trial in sorted(known, key=number_of):
            assert number_of(trial) == self.made
            proposals.remember(trial.config["trial"])
            self.live[trial.trial_id] = self.made
            self.made += 1
            if trial.status == Trial.TERMINATED:
                self.on_trial_complete(trial.trial_id, trial.last_result)

    @property
    def total_samples(self) -> int:
        return self.total

    def add_configurations(self, experiments: Any) -> None:
        """Tune gives the experiment, which is known."""

    def is_finished(self) -> bool:
        return self.made >= self.total or super().is_finished()

    def next_trial(self) -> Trial | None:
        if self.is_finished() or len(self.live) >= self.at_once:
            return None
        trial = Trial(
            self.experiment.run_identifier,
            config={"trial": self.proposals.propose(self.made)},
            storage=self.experiment.storage,
            experiment_tag=str(self.made),
            checkpoint_config=self.experiment.checkpoint_config,
            max_failures=self.experiment.spec["max_failures"],
        )
        self.live[trial.trial_id] = self.made
        self.made += 1
        return trial

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        self.proposals.tell(self.live.pop(trial_id), None if error else (result or {}).get("best"))
