"""One trial of a sweep: a recipe with other settings, trained as any run in a folder of its own, that reports to Ray Tune.

A trial with several seeds trains them one after the other. Its budget is all their steps together, so that a scheduler
compares two trials after the same steps of the same seeds.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback

from multicse.trainers import registry
from multicse.trainers.engine.checkpoint import Store, WriteFiles, read_state
from multicse.trainers.engine.checks import check, describe_shards_of
from multicse.trainers.engine.cluster import quiet, to_foreground
from multicse.trainers.engine.hosts import LocalHost
from multicse.trainers.engine.journal import Journal
from multicse.trainers.engine.launch import train
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.output import JOURNAL, OUTLIVES, WRITER, locked, store_of
from multicse.trainers.engine.text_fit import prepare
from multicse.trainers.engine.tracking import RunHandle, Tracker, find_runs, open_run
from multicse.trainers.recipe import Recipe

log = logging.getLogger(__name__)

PERCENT = "percent"
"""What schedulers count: how much of a trial is done, below 100. Methods with more steps are not ahead by them.

It is 0 where a scheduler has nothing to decide: at the end, and in all of the recipe as it stands, which all others are
compared with, so that it is not stopped.
"""
PATIENCE = 900.0
"""Seconds that a trial waits for a tracking server before it fails."""
THREAD_ENDS = 600
"""Seconds that a stopped trial has for its end; sending what a slow tracking server lacks takes 30 of them at most."""

Changes = Mapping[str, Any]
"""What Tune gives a trial: dotted path -> value, where it differs from the recipe."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all trials of a sweep share, and take along to their nodes."""

    sweep: str
    """Its name."""
    as_it_stands: str
    """The recipe that is varied, as JSON; paths absolute."""
    folder: str
    """The sweep's folder; trials write below it, on their own nodes."""
    experiment: str
    """Of MLflow."""
    parent: str
    """The MLflow run of the sweep."""
    metric: str
    """See `Sweep.metric`."""
    seeds: tuple[int, ...]
    """At least one."""
    source: Mapping[str, str] = field(default_factory=dict)
    """What `source_tags` says on the driver; a trial's process is a script of Ray's."""
    methods: Mapping[str, str] = field(default_factory=dict)
    """What `registry.loaded` says on the driver: methods in files of the user's own."""

    def recipe(self, changes: Changes) -> Recipe:
        """The recipe of a trial, with the sweep's first seed."""
        for name in self.methods.keys() - registry.loaded().keys():
            registry.load_source(name, self.methods[name])
        return Recipe.from_json(self.as_it_stands).changed(dict(changes)).replace("run.seed", self.seeds[0])

    def run_folder(self, trial_id: str, seed: int | str) -> Path:
        """The output folder of one seed of a trial, on its node."""
        return Path(self.folder) / "trials" / trial_id / f"seed-{seed}"

    def store(self, recipe: Recipe, trial_id: str, seed: int) -> Store:
        """The checkpoints of one seed of a trial: in its output folder, or in ``run.storage``."""
        placed = recipe.replace("run.output_dir", str(self.run_folder(trial_id, seed)))
        return store_of(placed, f"{self.sweep}/{trial_id}-seed-{seed}")


def in_process(recipe: Recipe) -> bool:
    """Whether a trial is the loop in one process, and not Tune over Train."""
    return recipe.run.num_workers <= 1


def steps_of(recipe: Recipe) -> int:
    """Steps of one run of a recipe, from its shards."""
    return recipe.steps(recipe.shards(recipe.lead).samples)


def trial(changes: Changes, plan: Plan) -> dict[str, Any]:
    """The function that Tune runs. Returns the last report, marked as finished.

    It keeps nothing in Tune: each seed is a run that goes on from its own last checkpoint, or has ended. That checkpoint is
    reported again, since the driver may have died before it wrote the report down.
    """
    to_foreground()
    trial_id = tune.get_context().get_trial_id()
    # An actor is used again by the next trial once this one's thread has ended, which sends its metrics first. Tune gives
    # up the next trial, without trying again, when that takes longer.
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(THREAD_ENDS)
    recipe = plan.recipe(changes)
    if not recipe.run.verbose:
        quiet()
    check(recipe)
    budget = Budget(len(plan.seeds), steps_of(recipe), judged=bool(changes))
    for seed in plan.seeds:
        seeded, output = placed(recipe, plan, trial_id, seed), plan.run_folder(trial_id, seed)
        output.mkdir(parents=True, exist_ok=True)
        store = plan.store(recipe, trial_id, seed)
        if (known := store.newest()) is not None:
            tune.report(budget.report(metrics_of(known, seeded)))
        prepare(seeded)
        handle = _open(plan, seeded, trial_id, changes)
        if in_process(seeded):
            with (
                locked(output, name=WRITER, wait=OUTLIVES),  # the trial of a dead driver may still end there
                Tracker(output / JOURNAL, handle.uri, handle.run_id, also=seeded.run.report_to) as tracker,
            ):
                engine = Engine(seeded, TrialHost(store, budget, seeded), tracker)
                engine.run()
            kept = engine.kept_score
        else:
            _, checkpoint = train(seeded, handle, output, store, [forward(budget)])
            metrics = metrics_of(checkpoint, seeded)
            budget.report(metrics)  # what its workers reported has passed by this process
            kept = metrics["best"]
        budget.done.append(kept)
        handle.drain(output / JOURNAL)
        # By which `track.py sync` knows that the run has ended.
        (output / "summary.json").write_text(json.dumps({"mlflow_run_id": handle.run_id}))
        handle.finish()
    return {**budget.last, PERCENT: 0.0, "finished": 1}


def placed(recipe: Recipe, plan: Plan, trial_id: str, seed: int) -> Recipe:
    """The recipe of one seed as the trial runs it: in its own folder. Held-out sets are left to the best trial."""
    run = recipe.run
    threads = run.threads or (None if run.gpus_per_worker else max(1, int(run.cpus_per_worker)))
    settings: dict[str, Any] = {
        "run.seed": seed,
        "run.output_dir": str(plan.run_folder(trial_id, seed)),
        "run.save_steps": None,
        "run.threads": threads,
        "run.register_as": None,
        "evaluation.final": (),
    }
    return recipe.changed(settings)


def metrics_of(checkpoint: Path, recipe: Recipe) -> dict[str, float]:
    """What the loop reported with a checkpoint, or would have: step, score and the score of the weights that are kept."""
    state = read_state(checkpoint)
    best, _, _, last = state["best"]
    return {"step": state["step"], "score": last, "best": last if recipe.evaluation.keep == "last" else best}


def _open(plan: Plan, recipe: Recipe, trial_id: str, changes: Changes) -> RunHandle:
    """The MLflow run of a trial's seed: nested in the sweep's, its changes as tags; the same one after a restart.

    A server that is away is waited for, up to `PATIENCE`: a sweep does not use up its trials meanwhile.
    """
    uri, journal = recipe.run.tracking_uri or "", Path(recipe.run.output_dir) / JOURNAL
    own = {"mlflow.parentRunId": plan.parent, "sweep.trial": trial_id, "sweep.seed": str(recipe.run.seed)}
    tags = {f"changed.{path}": str(value) for path, value in changes.items()}
    data, end, pause = describe_shards_of(recipe), time.monotonic() + PATIENCE, 1.0
    while True:
        try:
            found = (Journal(journal).header() or {}).get("run_id")
            if found is None:
                runs = find_runs(uri, plan.experiment, own)
                found = runs[0].run_id if runs else None
            everything = {**own, "identity": recipe.identity(), **tags, **plan.source}
            name = f"trial {trial_id}"
            return open_run(uri, plan.experiment, name, recipe.flat(), everything, found, journal, data)
        except Exception as error:
            if time.monotonic() > end:
                raise
            log.warning("the tracking server %s does not answer (%s); trial %s waits for it", uri, error, trial_id)
            time.sleep(pause)
            pause = min(30.0, 2 * pause)


def percent_of(step: int, steps: int, judged: bool) -> float:
    """Return `PERCENT` of a report."""
    return 100 * step / steps if judged and step < steps else 0.0


class Budget:
    """Where a trial stands over its seeds.

    Args:
        seeds: How many there are.
        steps: Steps of one seed.
        judged: Whether a scheduler may stop the trial.
    """

    def __init__(self, seeds: int, steps: int, judged: bool) -> None:
        self.seeds, self.steps, self.judged = seeds, steps, judged
        self.done: list[float] = []
        """Scores of the seeds that have ended."""
        self.last: dict[str, Any] = {}
        """The last report."""

    def report(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Metrics of one seed's run as the trial's: step and budget over all seeds, scores as means over those begun."""
        scores = {
            name: sum([*self.done, metrics[name]]) / (len(self.done) + 1) for name in ("score", "best") if name in metrics
        }
        step, steps = len(self.done) * self.steps + int(metrics["step"]), self.seeds * self.steps
        percent = percent_of(step, steps, self.judged)
        self.last = {**scores, "step": step, "steps": steps, PERCENT: percent, "seeds": len(self.done) + 1}
        return self.last


class TrialHost(LocalHost):
    """Where the loop of a trial runs: in this process. Tune hears of an evaluation once its checkpoint is kept."""

    def __init__(self, store: Store, budget: Budget, recipe: Recipe) -> None:
        super().__init__(store, gpu=recipe.run.gpus_per_worker > 0)
        self.budget = budget

    def save(self, write_files: WriteFiles | None, metrics: dict[str, float], last: bool) -> None:
        super().save(write_files, metrics, last=True)
        tune.report(self.budget.report(metrics))


def forward(budget: Budget) -> TuneReportCallback:
    """For a run of Ray Train: its workers' reports, passed on as the trial's."""

    class Forward(TuneReportCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            super().after_report(run_context, [budget.report(metrics[0])], checkpoint)

    return Forward()
