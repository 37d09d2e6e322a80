"""Ray Tune over the trials of a sweep: which are made, who stops them, and what is written down of them.

The records of the trials are all that one driver leaves to the next. Tune's own state is not used: it is written in several
files one after the other, and a driver that is killed meanwhile leaves some of them cut off or behind the others.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler
from ray.tune.search import SearchAlgorithm

from multicse.trainers.engine.output import JOURNAL
from multicse.trainers.engine.tracking import RunHandle, drain, find_runs, rename
from multicse.trainers.tuning import space as spaces
from multicse.trainers.tuning.study import draw, study
from multicse.trainers.tuning.sweep import GRACE, KEPT, Sweep, count, grid, own_values, resources
from multicse.trainers.tuning.trial import PERCENT, Plan, in_process, percent_of, trial
from multicse.trainers.tuning.trials import Records, Status, Trial, short_name

log = logging.getLogger(__name__)

REPORT_EVERY = 30
"""Seconds between two tables of the trials."""


class Search(SearchAlgorithm):
    """Makes each trial of a sweep once, and writes down how it ended.

    Args:
        sweep: What is searched.
        plan: What the trials take along.
        parent: The sweep's MLflow run.
        records: Where the trials are written down. Those that did not end there, or failed, are run again.
        at_once: Trials that run at a time.
    """

    def __init__(self, sweep: Sweep, plan: Plan, parent: RunHandle, records: Records, at_once: int) -> None:
        self.sweep, self.plan, self.parent, self.records, self.at_once = sweep, plan, parent, records, at_once
        self.trials = records.read(sweep.identity())
        """By number."""
        ended = {number for number, known in self.trials.items() if known.status in ("finished", "stopped")}
        self.todo = [number for number in range(count(sweep)) if number not in ended]
        self.live = 0
        """How many run."""
        self.experiment = tune.Experiment(
            sweep.name,
            tune.with_resources(tune.with_parameters(trial, plan=plan), resources(sweep.recipe)),
            storage_path=str(Path(plan.folder) / "tune"),
            max_failures=sweep.retries,
        )

    @property
    def total_samples(self) -> int:
        return count(self.sweep)

    def add_configurations(self, experiments: Any) -> None:
        """Tune gives the experiment, which is known."""

    def is_finished(self) -> bool:
        return not self.todo

    def next_trial(self) -> tune.experiment.Trial | None:
        if self.is_finished() or self.live >= self.at_once:
            return None
        number = self.todo.pop(0)
        if number not in self.trials:
            made = Trial(number=number, trial_id=f"{self.sweep.identity()}_{number:05d}", changes=self.propose(number))
        else:
            made = replace(self.trials[number], status="running", error=None)
        self.trials[number] = made
        self.records.write(made)  # before it is run: its folder is found again by its number
        self.live += 1
        return tune.experiment.Trial(
            self.experiment.run_identifier,
            trial_id=made.trial_id,
            config=dict(made.changes),
            storage=self.experiment.storage,
            experiment_tag=str(number),
            max_failures=self.experiment.spec["max_failures"],
        )

    def propose(self, number: int) -> dict[str, Any]:
        """What a new trial changes: nothing first, then a point of the grid, or a draw.

        A draw depends on the seed, the number and, with Optuna's TPE (Bergstra et al., 2011), on the trials that are known.
        """
        if number == 0:
            return {}
        if self.sweep.searcher == "grid":
            return grid(self.sweep)[number]
        seed = int(np.random.SeedSequence([self.sweep.seeds[0] % 2**32, number]).generate_state(1)[0])
        if self.sweep.searcher == "random":
            sampler: BaseSampler = RandomSampler(seed=seed)
        else:
            startup = min(10, max(4, count(self.sweep) // 4))
            # Trials at the same time are not all sent to one place.
            sampler = TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)
        space, own = spaces.sampled(self.sweep.space), own_values(self.sweep)
        values = draw(study(self.trials.values(), space, own, sampler), space)
        return {path: value for path, value in values.items() if value != own[path]}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._keep(trial_id, result)
        try:
            self.records.write(self.trials[number_of(trial_id)])
        except OSError as error:  # the next report, or the trial's end, writes it again
            log.warning("the record of trial %s cannot be written now: %s", trial_id, error)

    def end(self, trial_id: str, result: dict[str, Any], status: Status, error: str | None = None) -> None:
        """Write down how a trial ended, and end its MLflow runs. A trial that a scheduler stops cannot do it itself."""
        self.live -= 1
        self._keep(trial_id, result, status=status, error=error, ended_at=time.time())
        end_runs(self, trial_id)
        self.records.write(self.trials[number_of(trial_id)])  # last: a trial without an end in its record is run again

    def _keep(self, trial_id: str, result: dict[str, Any], **ended: Any) -> None:
        known = self.trials[number_of(trial_id)]
        if "score" in result:
            curve = {**dict(known.curve), result["step"]: result["score"]}
            ended |= {"curve": tuple(curve.items())}
        if "best" in result:
            ended |= {name: result[name] for name in ("best", "step", "steps", "seeds")}
        self.trials[known.number] = replace(known, **ended)


class Watch(tune.Callback):
    """Tells a search how its trials end."""

    def __init__(self, search: Search) -> None:
        self.search = search

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        result = trial.last_result or {}
        self.search.end(trial.trial_id, result, "finished" if result.get("finished") else "stopped")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        *_, last = Path(trial.error_file).read_text().strip().splitlines()
        self.search.end(trial.trial_id, trial.last_result or {}, "failed", last.strip())


def number_of(trial_id: str) -> int:
    """The number of a trial in its name."""
    return int(trial_id.rpartition("_")[2])


def run(search: Search) -> list[Trial]:
    """Run the trials that did not end yet; all trials of the sweep, in their order."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # with which Tune takes no reporter
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(search.at_once)  # a cluster grows for all of them together
    if search.todo:
        tune.run(
            search.experiment,
            search_alg=search,
            scheduler=make_scheduler(search.sweep, list(search.trials.values())),
            # Importing torch and transformers takes longer than a small trial. A trial of several workers that is stopped
            # early still waits for Ray Train: Tune would give up the next trial, which finds its actor taken.
            reuse_actors=in_process(search.sweep.recipe),
            raise_on_failed_trial=False,
            callbacks=[Watch(search)],
            verbose=1,
            progress_reporter=tune.CLIReporter(
                metric_columns=["step", "steps", "best"],
                parameter_columns={path: short_name(path) for path in search.sweep.space},
                max_report_frequency=REPORT_EVERY,
                print_intermediate_tables=True,
            ),
        )
    end_runs(search)
    return [known for _, known in sorted(search.trials.items())]


def make_scheduler(sweep: Sweep, known: Sequence[Trial] = ()) -> TrialScheduler | None:
    """Ray's ASHA (Li et al., 2020), told of the trials that have ended, with which it compares."""
    if sweep.scheduler == "none":
        return None
    asha = AsyncHyperBandScheduler(
        time_attr=PERCENT, metric="score", mode="max", max_t=100, grace_period=GRACE, reduction_factor=KEPT
    )
    for one in known:
        if one.status in ("finished", "stopped"):
            like = SimpleNamespace(trial_id=one.trial_id)
            asha.on_trial_add(None, like)
            for step, score in one.curve:
                asha.on_trial_result(None, like, {PERCENT: percent_of(step, one.steps, bool(one.changes)), "score": score})
    return asha


def end_runs(search: Search, trial_id: str | None = None) -> None:
    """End the MLflow runs of a trial that ended; of all, once nothing runs any more. Raises nothing.

    Those of interrupted trials are KILLED: they go on with the same command.
    """
    plan, parent = search.plan, search.parent
    known = {one.trial_id: one for one in search.trials.values()}
    wanted = {"mlflow.parentRunId": plan.parent} | ({"sweep.trial": trial_id} if trial_id else {})
    try:
        for run in find_runs(parent.uri, plan.experiment, wanted):
            one = known[run.tags["sweep.trial"]]
            if run.status != "RUNNING" and run.tags.get("sweep.status") == one.status:
                continue
            # What the trial's process could not send; after a trial on another node, what its last checkpoint has of it.
            seed = int(run.tags["sweep.seed"])
            journal = plan.run_folder(one.trial_id, seed) / JOURNAL
            if not journal.exists() and (newest := plan.store(search.sweep.recipe, one.trial_id, seed).newest()):
                journal = newest / JOURNAL
            drain(journal, parent.uri, run.run_id, timeout=5)
            tags = {"sweep.number": str(one.number), "sweep.status": one.status, "sweep.step": str(one.step)}
            tags |= {} if one.best is None else {"sweep.best": str(one.best)}
            tags |= {"sweep.error": one.error[:500]} if one.error else {}
            rename(parent.uri, run.run_id, f"trial {one.number}", tags)
            if run.status == "RUNNING":
                status = {"running": "KILLED", "failed": "FAILED"}.get(one.status, "FINISHED")
                RunHandle(run.run_id, parent.uri, "", "").finish(status)
    except Exception as error:
        log.warning("the MLflow runs of the trials could not be ended: %s", error)
