"""A trial of a sweep: a recipe with changed settings, trained like any run in its own folder, which reports to Ray Tune.

A trial with several seeds trains them one after another. Its budget is the sum of their steps, so a scheduler compares
trials after the same steps of the same seeds.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback

from multicse import plugins
from multicse.trainers.engine.checkpoint import read_state
from multicse.trainers.engine.checks import check_recipe
from multicse.trainers.engine.cluster import quiet
from multicse.trainers.engine.hosts import Host
from multicse.trainers.engine.ray_start import to_foreground
from multicse.trainers.engine.run import Part, Run, store_of
from multicse.trainers.engine.selection import Selection
from multicse.trainers.engine.store import Store, WriteFiles
from multicse.trainers.recipe import Recipe

log = logging.getLogger(__name__)

PERCENT = "percent"
"""Progress that schedulers count: the percentage of a trial that is done, below 100. It is 0 if a scheduler must not
decide: at the end, and throughout trial 0, the unchanged recipe, with which all others are compared."""
PATIENCE = 900.0
"""Seconds for which a trial waits for a tracking server before it fails."""
THREAD_ENDS = 600
"""Seconds that a stopped trial has to finish; sending the remaining metrics to a slow tracking server takes at most 30."""

Changes = Mapping[str, Any]
"""Changed settings that Tune passes to a trial: dotted path -> value."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings that all trials of a sweep share, sent to their nodes."""

    sweep: str
    """Name of the sweep."""
    as_it_stands: str
    """The unchanged recipe as JSON, with absolute paths."""
    folder: str
    """Folder of the sweep, below which trials write on their own nodes."""
    experiment: str
    """MLflow experiment."""
    parent: str
    """MLflow run of the sweep."""
    seeds: tuple[int, ...]
    """Seeds of every trial, at least one."""
    run_id: str = ""
    """ID of the sweep, by which MLflow runs of its trials are found."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Result of `source_tags` on the driver; a trial's process runs a script of Ray."""
    methods: Mapping[str, str] = field(default_factory=dict)
    """Result of `plugins.loaded` on the driver: methods from user files."""

    def recipe(self, changes: Changes) -> Recipe:
        """Return the recipe of a trial, with the sweep's first seed."""
        for name in self.methods.keys() - plugins.loaded().keys():
            plugins.load_source(name, self.methods[name])
        return Recipe.from_json(self.as_it_stands).changed(dict(changes)).replace("run.seed", self.seeds[0])

    def run_folder(self, trial_id: str, seed: int | str) -> Path:
        """Return the output folder of one seed of a trial, on its node."""
        return Path(self.folder) / "trials" / trial_id / f"seed-{seed}"

    def store(self, recipe: Recipe, trial_id: str, seed: int) -> Store:
        """Return the checkpoints of one seed of a trial, in its output folder or in ``run.storage`` of its recipe."""
        placed = recipe.replace("run.output_dir", str(self.run_folder(trial_id, seed)))
        return store_of(placed, self.store_name(trial_id, seed))

    def store_name(self, trial_id: str, seed: int) -> str:
        """Return the folder of these checkpoints in ``run.storage``."""
        return f"{self.sweep}/{trial_id}-seed-{seed}"

    def run(self, changes: Changes, trial_id: str, seed: int) -> Run:
        """Return the run of one seed of a trial. Its MLflow run is nested in the sweep's."""
        find = {"sweep.id": self.run_id, "sweep.trial": trial_id, "sweep.seed": str(seed)}
        tags = {"mlflow.parentRunId": self.parent} | {f"changed.{path}": str(value) for path, value in changes.items()}
        part = Part(
            store=self.store_name(trial_id, seed),
            name=f"trial {trial_id}",
            find=find,
            tags={**tags, **self.source},
            patience=PATIENCE,
        )
        return Run(placed(self.recipe(changes), self, trial_id, seed), part)


def in_process(recipe: Recipe) -> bool:
    """Return True if a trial trains in its own process, without Ray Train."""
    return recipe.run.num_workers <= 1


def steps_of(recipe: Recipe) -> int:
    """Return the steps of one run of a recipe, from the size of its shards."""
    return recipe.steps(recipe.shards(recipe.lead).samples)


def trial(changes: Changes, plan: Plan) -> dict[str, Any]:
    """Run one trial and return its last report, marked as finished; the function that Tune calls.

    It stores nothing in Tune: each seed is a run that resumes from its own last checkpoint, or has ended. The metrics of
    that checkpoint are reported again, since the driver may have died before it recorded them.
    """
    to_foreground()
    trial_id = tune.get_context().get_trial_id()
    # The next trial reuses the actor after this trial's thread has sent its metrics and ended. If that takes longer than
    # the timeout, Tune fails the next trial without a retry.
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(THREAD_ENDS)
    recipe = plan.recipe(changes)
    if not recipe.run.verbose:
        quiet()
    check_recipe(recipe)
    budget = Budget(len(plan.seeds), steps_of(recipe), judged=bool(changes))
    for seed in plan.seeds:
        run = plan.run(changes, trial_id, seed)
        if (known := run.store.newest()) is not None:
            tune.report(budget.report(metrics_of(known, run.recipe)))
        with run:
            host = TrialHost(run.store, budget, run.recipe) if in_process(run.recipe) else None
            run.train(host=host, callbacks=[forward(budget)])
        metrics = metrics_of(run.checkpoint(), run.recipe)
        budget.report(metrics)  # reports of workers did not pass through this process
        budget.done.append(metrics["best"])
    return {**budget.last, PERCENT: 0.0, "finished": 1}


def placed(recipe: Recipe, plan: Plan, trial_id: str, seed: int) -> Recipe:
    """Return the recipe of one seed with the trial's own folder, and without test tasks, which only the best trial runs."""
    run = recipe.run
    threads = run.threads or (None if run.gpus_per_worker else max(1, int(run.cpus_per_worker)))
    settings: dict[str, Any] = {
        "run.seed": seed,
        "run.output_dir": str(plan.run_folder(trial_id, seed)),
        "run.save_steps": None,
        "run.keep_every": None,
        "run.threads": threads,
        "run.register_as": None,
        "evaluation.final": (),
    }
    return recipe.changed(settings)


def metrics_of(checkpoint: Path, recipe: Recipe) -> dict[str, float]:
    """Return the metrics that belong to a checkpoint: step, score, and the score of the selected weights."""
    state = read_state(checkpoint)
    selection = Selection.read(recipe.evaluation, state)
    return {"step": state["progress"]["step"], "score": selection.last_score, "best": selection.kept_score}


def percent_of(step: int, steps: int, judged: bool) -> float:
    """Return `PERCENT` after a step of a trial, which a scheduler may stop if it is `judged`."""
    return 100 * step / steps if judged and step < steps else 0.0


class Budget:
    """Progress of a trial over its seeds, with a number of steps per seed; a scheduler may stop it if `judged`."""

    def __init__(self, seeds: int, steps: int, judged: bool) -> None:
        self.seeds, self.steps, self.judged = seeds, steps, judged
        self.done: list[float] = []
        """Scores of the seeds that have ended."""
        self.last: dict[str, Any] = {}
        """The last report."""

    def report(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return metrics of one seed as metrics of the trial: total steps, and scores averaged over the started seeds."""
        scores = {
            name: sum([*self.done, metrics[name]]) / (len(self.done) + 1) for name in ("score", "best") if name in metrics
        }
        step, steps = len(self.done) * self.steps + int(metrics["step"]), self.seeds * self.steps
        percent = percent_of(step, steps, self.judged)
        self.last = {**scores, "step": step, "steps": steps, PERCENT: percent, "seeds": len(self.done) + 1}
        return self.last


class TrialHost(Host):
    """Host of a trial's training loop in its own process. Tune receives an evaluation after its checkpoint is saved."""

    rescues = False  # other processes read the store

    def __init__(self, store: Store, budget: Budget, recipe: Recipe) -> None:
        super().__init__(store, gpu=recipe.run.gpus_per_worker > 0)
        self.budget = budget

    def save(self, write_files: WriteFiles | None, metrics: dict[str, float], last: bool) -> None:
        """Save a checkpoint, then report its metrics to Tune."""
        super().save(write_files, metrics, last=True)
        tune.report(self.budget.report(metrics))


def forward(budget: Budget) -> TuneReportCallback:
    """Return a Ray Train callback that forwards reports of the workers as reports of the trial."""

    class Forward(TuneReportCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            super().after_report(run_context, [budget.report(metrics[0])], checkpoint)

    return Forward()
