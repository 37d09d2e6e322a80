"""A sweep: which trials it has, what it is refused for, and how many of them run at a time."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ray import tune

from multicse.data.errors import redacted
from multicse.trainers import registry
from multicse.trainers.engine.checks import check
from multicse.trainers.engine.launch import resolve, with_uploaded_shards
from multicse.trainers.engine.mlflow_server import source_tags
from multicse.trainers.engine.output import experiment_of
from multicse.trainers.engine.tracking import RunHandle
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning import space as spaces
from multicse.trainers.tuning.space import SearchSpace
from multicse.trainers.tuning.trial import Plan, in_process, steps_of
from multicse.trainers.tuning.trials import Records

LEAST_EVALUATIONS = 10
"""Evaluations that a trial has at least under a scheduler: what is measured seldom cannot be stopped early."""
GRACE = 60.0
"""Percent of a trial that ASHA waits: in the warm-up the settings that are the best in the end are often behind."""
KEPT = 3
"""ASHA goes on with the best one of so many."""
DRIVER = 0.01
"""CPUs of the function that starts Ray Train within a trial; 0 is refused by Tune."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep does."""

    pipeline: str
    """Whose recipe is varied; a name, or a file."""
    recipe: Recipe
    """The recipe that is varied; resolved."""
    space: SearchSpace
    """What varies."""
    trials: int | None
    """How many, the recipe as it stands included; none, of a grid: as many as it has."""
    searcher: Literal["optuna", "random", "grid"] = "optuna"
    scheduler: Literal["asha", "none"] = "asha"
    seeds: tuple[int, ...]
    """Of every configuration; the mean counts."""
    retries: int = 1
    """Times that a failed trial is tried again."""
    concurrent: int | None = None
    """Trials at a time; none: as many as fit."""

    @property
    def name(self) -> str:
        """``sweep-PIPELINE-RECIPE-1a2b3c``: what is varied, and a hash of all that decides the sweep."""
        return f"sweep-{self.recipe.name.replace('/', '-')}-{self.identity()[:6]}"

    def identity(self) -> str:
        """A hash of what decides which trials there are; 12 hex digits. Resources and places do not."""
        parts = {
            "recipe": self.recipe.identity(),
            "space": {path: _described(domain) for path, domain in self.space.items()},
            "how": [self.trials, self.searcher, self.scheduler, self.seeds],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]

    @property
    def metric(self) -> str:
        """Task and metric that trials are compared by, as figures and tables name it."""
        from multicse.evaluation.registry import make_tasks
        from multicse.trainers.engine.loop import lower_is_better

        config = self.recipe.evaluation
        (task,) = make_tasks([str(config.select)], config.data)
        return f"{'-' if lower_is_better(task) else ''}{task.name}/{task.primary}"


def _described(domain: Any) -> Any:
    """What a domain holds, the same in every process."""
    if isinstance(domain, dict):
        return domain
    content = {name: value for name, value in vars(domain).items() if name != "sampler"}
    return [type(domain).__name__, type(domain.get_sampler()).__name__, content]


def prepared(recipe: Recipe, scheduler: str, seed: int) -> Recipe:
    """The recipe as trials run it: resolved, and under a scheduler evaluated often enough to be stopped early.

    Raises RecipeError for a recipe that names no development task, as nothing could be compared.
    """
    recipe = resolve(recipe).replace("run.seed", seed)
    if recipe.evaluation.select is None:
        raise RecipeError("evaluation.select is none: a sweep compares trials by a development task; name one")
    if scheduler != "none":
        often = max(1, steps_of(recipe) // LEAST_EVALUATIONS)
        if recipe.evaluation.eval_steps > often:
            recipe = recipe.replace("evaluation.eval_steps", often)
    return recipe


def check_sweep(sweep: Sweep) -> None:
    """Raise RecipeError for a sweep that cannot run; no cluster is needed."""
    if not sweep.seeds or len(set(sweep.seeds)) < len(sweep.seeds):
        raise RecipeError(f"--seeds takes at least one seed, each once, got {list(sweep.seeds)}")
    if sweep.trials is not None and sweep.trials < 1:
        raise RecipeError(f"--trials {sweep.trials}: the recipe as it stands is one trial; give at least 1")
    check(sweep.recipe)
    spaces.check(sweep.space, sweep.recipe)
    for path, domain in sweep.space.items():
        for value in spaces.values_to_try(path, domain):
            if redacted(str(value)) != str(value):
                raise RecipeError(
                    f"search space: {path}={redacted(str(value))!r} holds a password, and a sweep is written down"
                )
            if path.startswith("streams."):  # what the shards have to do with
                check(sweep.recipe.replace(path, value))
    if sweep.searcher == "grid":
        points = len(grid(sweep))
        if sweep.trials not in (None, points):
            raise RecipeError(
                f"--trials {sweep.trials}: the grid has {points} with the recipe as it stands; give --trials {points} or "
                "none, or --searcher random"
            )


def grid(sweep: Sweep) -> list[dict[str, Any]]:
    """The changes of every trial of a grid, once each: first the recipe as it stands."""
    own = own_values(sweep)
    points = [{path: value for path, value in point.items() if value != own[path]} for point in spaces.grid(sweep.space)]
    return [{}, *(point for point in points if point)]


def count(sweep: Sweep) -> int:
    """How many trials there are."""
    return len(grid(sweep)) if sweep.trials is None or sweep.searcher == "grid" else sweep.trials


def own_values(sweep: Sweep) -> dict[str, Any]:
    """The recipe's own value of everything that its space varies."""
    return spaces.values_of(sweep.recipe, list(sweep.space))


def records_of(sweep: Sweep, folder: Path) -> Records:
    """Where the records of the sweep's trials are: in its folder, or in ``run.storage``."""
    if sweep.recipe.run.storage is None:
        return Records(str(folder / "trials"))
    base, question, options = sweep.recipe.run.storage.partition("?")
    return Records(f"{base.rstrip('/')}/{sweep.name}{question}{options}")


def plan_of(sweep: Sweep, folder: Path, parent: RunHandle) -> Plan:
    """What the trials take along."""
    return Plan(
        sweep=sweep.name,
        as_it_stands=with_uploaded_shards(sweep.recipe).to_json(secrets=True),
        folder=str(folder),
        experiment=experiment_of(sweep.recipe),
        parent=parent.run_id,
        metric=sweep.metric,
        seeds=sweep.seeds,
        source=source_tags(),
        methods=registry.loaded(),
    )


def needs(recipe: Recipe) -> tuple[float, float]:
    """CPUs and GPUs that a trial of this recipe takes, its workers and their reading included."""
    run = recipe.run
    if in_process(recipe):
        return run.cpus_per_worker, run.gpus_per_worker
    reading = sum(stream.cpus for stream in recipe.streams.values())
    return run.num_workers * (run.cpus_per_worker + reading) + DRIVER, run.num_workers * run.gpus_per_worker


def resources(recipe: Recipe) -> tune.PlacementGroupFactory:
    """What Tune sets aside for a trial; with several workers Ray Train asks for theirs."""
    cpus, gpus = needs(recipe) if in_process(recipe) else (DRIVER, 0.0)
    return tune.PlacementGroupFactory([{"CPU": cpus} | ({"GPU": gpus} if gpus else {})])


def at_once(recipe: Recipe, cpus: float, gpus: float, most: int | None = None) -> int:
    """How many trials fit on so many CPUs and GPUs, `most` at most. Raises RecipeError when not even one does."""
    need = needs(recipe)
    fits = min(int((have + 1e-9) // want) for have, want in zip((cpus, gpus), need, strict=True) if want)
    if fits < 1:
        raise RecipeError(
            f"a trial takes {need[0]:g} CPUs and {need[1]:g} GPUs, the cluster has {cpus:g} and {gpus:g}: the sweep would "
            "wait for ever. Lower run.num_workers, run.cpus_per_worker or run.gpus_per_worker"
        )
    return min(fits, most or fits)
