"""Execution of a sweep with Ray Tune: proposing trials, stopping them early, and recording them.

The records of the trials are all that a later driver reads. Tune's own state is not used: it consists of several files
written one after another, so a killed driver can leave some of them truncated or outdated.
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

from multicse.trainers.engine.record import JOURNAL
from multicse.trainers.engine.tracking import RunHandle, drain, find_runs, rename
from multicse.trainers.tuning.domains import draw
from multicse.trainers.tuning.space import stored
from multicse.trainers.tuning.study import study
from multicse.trainers.tuning.sweep import GRACE, KEPT, Sweep, count, grid, own_values, resources
from multicse.trainers.tuning.trial import PERCENT, Plan, in_process, percent_of, trial
from multicse.trainers.tuning.trials import Records, Status, Trial, ranked

log = logging.getLogger(__name__)

REPORT_EVERY = 30
"""Seconds between two progress lines."""


class Search(SearchAlgorithm):
    """Search algorithm for Ray Tune that creates each trial of a sweep once and records its result.

    Args:
        sweep: The sweep.
        plan: Settings that all trials share.
        parent: The sweep's MLflow run.
        records: Records of the trials. Trials that are missing, unfinished or failed are run.
        at_once: Maximum number of concurrent trials.
    """

    def __init__(self, sweep: Sweep, plan: Plan, parent: RunHandle, records: Records, at_once: int) -> None:
        self.sweep, self.plan, self.parent, self.records, self.at_once = sweep, plan, parent, records, at_once
        self.trials = records.read(sweep.identity())
        """Trials by number."""
        ended = {number for number, known in self.trials.items() if known.status in ("finished", "stopped")}
        self.todo = [number for number in range(count(sweep)) if number not in ended]
        self.live = 0
        """Number of running trials."""
        self.experiment = tune.Experiment(
            sweep.name,
            tune.with_resources(tune.with_parameters(trial, plan=plan), resources(sweep.recipe)),
            storage_path=str(Path(plan.folder) / "tune"),
            max_failures=sweep.retries,
        )

    @property
    def total_samples(self) -> int:
        """Number of trials."""
        return count(self.sweep)

    def add_configurations(self, experiments: Any) -> None:
        """Do nothing: the experiment is created in the constructor."""

    def is_finished(self) -> bool:
        """Return True if no trial is left to start."""
        return not self.todo

    def next_trial(self) -> tune.experiment.Trial | None:
        """Return the next trial, or None if enough are running; its record is written first."""
        if self.is_finished() or self.live >= self.at_once:
            return None
        number = self.todo.pop(0)
        if number not in self.trials:
            made = Trial(number=number, trial_id=f"{self.sweep.identity()}_{number:05d}", changes=self.propose(number))
        else:
            made = replace(self.trials[number], status="running", error=None)
        self.trials[number] = made
        self.records.write(made)  # before it runs, so that a later driver finds its folder
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
        """Return the changes of a new trial: none for trial 0, otherwise a grid point or a draw.

        A draw depends on the seed, the number and, with Optuna's TPE (Bergstra et al., 2011), on the known trials.
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
            # constant_liar: concurrent trials should not all try the same region.
            sampler = TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)
        space, recipe, own = self.sweep.domains, self.sweep.recipe, own_values(self.sweep)
        values = draw(study(self.trials.values(), space, own, sampler), space)
        values = {path: stored(recipe, path, value) for path, value in values.items()}
        return {path: value for path, value in values.items() if value != own[path]}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Record the metrics of a report."""
        self._keep(trial_id, result)
        try:
            self.records.write(self.trials[number_of(trial_id)])
        except OSError as error:  # it is written again with the next report or at the end of the trial
            log.warning("the record of trial %s could not be written: %s", trial_id, error)

    def end(self, trial_id: str, result: dict[str, Any], status: Status, error: str | None = None) -> None:
        """Record the end of a trial and finish its MLflow runs, which a trial stopped by a scheduler cannot do itself."""
        self.live -= 1
        self._keep(trial_id, result, status=status, error=error, ended_at=time.time())
        end_runs(self, trial_id)
        self.records.write(self.trials[number_of(trial_id)])  # last, since a trial that has not ended is run again

    def _keep(self, trial_id: str, result: dict[str, Any], **ended: Any) -> None:
        known = self.trials[number_of(trial_id)]
        if "score" in result:
            curve = {**dict(known.curve), result["step"]: result["score"]}
            ended |= {"curve": tuple(curve.items())}
        if "best" in result:
            ended |= {name: result[name] for name in ("best", "step", "steps", "seeds")}
        self.trials[known.number] = replace(known, **ended)


class Progress(tune.ProgressReporter):
    """Progress line of a search, in place of Tune's table, which has a row per trial and terms of its scheduler."""

    def __init__(self, search: Search) -> None:
        self.search, self._last = search, float("-inf")

    def should_report(self, trials: list[Any], done: bool = False) -> bool:
        """Return True every `REPORT_EVERY` seconds, but not at the end, when the sweep prints its table."""
        return not done and time.monotonic() - self._last >= REPORT_EVERY

    def report(self, trials: list[Any], done: bool, *sys_info: Any) -> None:
        """Print the line."""
        self._last = time.monotonic()
        print(progress(list(self.search.trials.values()), self.search.total_samples, self.search.sweep.metric), flush=True)


def progress(trials: Sequence[Trial], total: int, metric: str) -> str:
    """Return ``trials 1/4  trial 0 step 12/60  trial 2 starting  lee-dev/spearman 47.95 (trial 1)``.

    Args:
        trials: Trials that have started.
        total: Number of trials of the sweep.
        metric: Name of their score.
    """
    running = [one for one in trials if not one.ended]
    return "  ".join(
        [
            f"trials {len(trials) - len(running)}/{total}",
            *(f"trial {one.number} " + (f"step {one.step}/{one.steps}" if one.steps else "starting") for one in running),
            *(f"{metric} {best.score:.2f} (trial {best.number})" for best in ranked(trials)[:1]),
        ]
    )


class TrialEnds(tune.Callback):
    """Tune callback that reports the end of trials to a search."""

    def __init__(self, search: Search) -> None:
        self.search = search

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record a finished or stopped trial."""
        result = trial.last_result or {}
        self.search.end(trial.trial_id, result, "finished" if result.get("finished") else "stopped")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record a failed trial."""
        *_, last = Path(trial.error_file).read_text().strip().splitlines()
        self.search.end(trial.trial_id, trial.last_result or {}, "failed", last.strip())


def number_of(trial_id: str) -> int:
    """Return the number of a trial from its ID."""
    return int(trial_id.rpartition("_")[2])


def run(search: Search) -> list[Trial]:
    """Run the trials that have not ended, and return all trials of the sweep by number."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new output does not support a reporter
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(search.at_once)  # so that an autoscaler sees all of them
    if search.todo:
        tune.run(
            search.experiment,
            search_alg=search,
            scheduler=make_scheduler(search.sweep, list(search.trials.values())),
            # Importing torch and transformers takes longer than a small trial. With several workers, an actor is not reused:
            # a stopped trial still waits for Ray Train, so the actor would be busy and the next trial would fail.
            reuse_actors=in_process(search.sweep.recipe),
            raise_on_failed_trial=False,
            callbacks=[TrialEnds(search)],
            verbose=1,
            progress_reporter=Progress(search),
        )
    end_runs(search)
    return [known for _, known in sorted(search.trials.items())]


def make_scheduler(sweep: Sweep, known: Sequence[Trial] = ()) -> TrialScheduler | None:
    """Return ASHA (Li et al., 2020) with the curves of `known` trials, or None without a scheduler."""
    if sweep.scheduler == "none":
        return None
    asha = AsyncHyperBandScheduler(
        time_attr=PERCENT, metric="score", mode="max", max_t=100, grace_period=GRACE, reduction_factor=KEPT
    )
    for one in known:  # a trial that runs again is not judged again at a rung that it has passed
        like = SimpleNamespace(trial_id=one.trial_id)
        asha.on_trial_add(None, like)
        for step, score in one.curve:
            asha.on_trial_result(None, like, {PERCENT: percent_of(step, one.steps, bool(one.changes)), "score": score})
    return asha


def end_runs(search: Search, trial_id: str | None = None) -> None:
    """Finish the MLflow runs of an ended trial, or of all trials after the last one. Errors are logged.

    Runs of interrupted trials get the status KILLED; the same command resumes them.
    """
    plan, parent = search.plan, search.parent
    known = {one.trial_id: one for one in search.trials.values()}
    wanted = {"sweep.id": plan.run_id} | ({"sweep.trial": trial_id} if trial_id else {})
    try:
        for run in find_runs(parent.uri, plan.experiment, wanted):
            if "sweep.trial" not in run.tags:  # the sweep's own
                continue
            one, nested = known[run.tags["sweep.trial"]], {"mlflow.parentRunId": plan.parent}
            ended = run.status != "RUNNING" and run.tags.get("sweep.status") == one.status
            if ended and nested.items() <= run.tags.items():  # not so if the sweep's run was deleted and created again
                continue
            # Send the metrics that the trial's process could not send; from its last checkpoint if it ran on another node.
            seed = int(run.tags["sweep.seed"])
            journal = plan.run_folder(one.trial_id, seed) / JOURNAL
            if not journal.exists():
                plan.store(search.sweep.recipe, one.trial_id, seed).fetch(JOURNAL, journal.parent)
            drain(journal, parent.uri, run.run_id, timeout=5)
            tags = {**nested, "sweep.number": str(one.number), "sweep.status": one.status, "sweep.step": str(one.step)}
            tags |= {} if one.best is None else {"sweep.best": str(one.best)}
            tags |= {"sweep.error": one.error[:500]} if one.error else {}
            rename(parent.uri, run.run_id, f"trial {one.number}", tags)
            if run.status == "RUNNING":
                status = {"running": "KILLED", "failed": "FAILED"}.get(one.status, "FINISHED")
                RunHandle(run.run_id, parent.uri).finish(status)
    except Exception as error:
        log.warning("the MLflow runs of the trials could not be finished: %s", error)
