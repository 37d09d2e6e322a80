"""Definition of a sweep: its trials, its checks, and the number of concurrent trials."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ray import tune
from ray.tune.search.sample import Domain

from multicse import plugins
from multicse.data.errors import redacted
from multicse.trainers.engine import record
from multicse.trainers.engine.checks import check_recipe, check_streams
from multicse.trainers.engine.launch import resolve
from multicse.trainers.engine.mlflow_server import source_tags
from multicse.trainers.engine.run import experiment_of
from multicse.trainers.engine.tracking import RunHandle
from multicse.trainers.engine.workers import with_uploaded_shards
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning import space as spaces
from multicse.trainers.tuning.domains import described
from multicse.trainers.tuning.space import SearchSpace
from multicse.trainers.tuning.trial import Plan, in_process, steps_of
from multicse.trainers.tuning.trials import Records

LEAST_EVALUATIONS = 10
"""Minimum number of evaluations per trial with a scheduler, which can stop a trial only at an evaluation."""
GRACE = 60.0
"""Percent of a trial before ASHA can stop it: during the warm-up, settings that are best in the end often score lower."""
KEPT = 3
"""ASHA continues one in this many trials."""
DRIVER = 0.01
"""CPUs of the function that starts Ray Train within a trial; Tune does not allow 0."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Settings of a sweep."""

    pipeline: str
    """Pipeline of the recipe: a name, or a file."""
    recipe: Recipe
    """The resolved recipe that is varied."""
    space: SearchSpace
    """Settings to vary, and their domains."""
    trials: int | None
    """Number of trials, including the unchanged recipe. If None, as many as the grid has."""
    searcher: Literal["optuna", "random", "grid"] = "optuna"
    scheduler: Literal["asha", "none"] = "asha"
    seeds: tuple[int, ...]
    """Seeds of every configuration, whose scores are averaged."""
    retries: int = 1
    """Number of retries of a failed trial."""
    concurrent: int | None = None
    """Maximum number of concurrent trials. If None, as many as fit."""

    @property
    def name(self) -> str:
        """Return ``sweep-PIPELINE-RECIPE-1a2b3c``: the recipe's name, and a hash of everything that determines the sweep."""
        return f"sweep-{self.recipe.name.replace('/', '-')}-{self.identity()[:6]}"

    @cached_property
    def domains(self) -> dict[str, Domain]:
        """Settings to vary, and the domains from which their values are drawn, with choices as the recipe stores them."""
        return spaces.sampled(self.space, self.recipe)

    def identity(self) -> str:
        """Return a hash of everything that determines the trials, without resources and locations; 12 hex digits."""
        parts = {
            "recipe": self.recipe.identity(),
            "space": {path: _described(domain) for path, domain in self.space.items()},
            "how": [self.trials, self.searcher, self.scheduler, self.seeds],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]

    @property
    def metric(self) -> str:
        """Return task and metric by which trials are compared, as shown in figures and tables."""
        from multicse.evaluation.registry import make_tasks
        from multicse.trainers.engine.selection import lower_is_better

        config = self.recipe.evaluation
        (task,) = make_tasks([str(config.select)], config.data)
        return f"{'-' if lower_is_better(task) else ''}{task.name}/{task.primary}"


def _described(given: Any) -> Any:
    return described(given) if isinstance(given, Domain) else given


def prepared(recipe: Recipe, scheduler: str, seed: int) -> Recipe:
    """Return the recipe as trials run it: resolved, and with a scheduler evaluated often enough to be stopped early."""
    recipe = resolve(recipe).replace("run.seed", seed)
    if recipe.evaluation.select is None:
        raise RecipeError("evaluation.select is None, but a sweep compares trials by a development task; name one")
    if recipe.run.report_to != "mlflow":
        raise RecipeError(f"run.report_to={recipe.run.report_to!r}: a sweep records its trials in MLflow; set mlflow")
    if scheduler != "none":
        often = max(1, steps_of(recipe) // LEAST_EVALUATIONS)
        if recipe.evaluation.eval_steps > often:
            recipe = recipe.replace("evaluation.eval_steps", often)
    return recipe


def check_sweep(sweep: Sweep) -> None:
    """Raise RecipeError if a sweep cannot run; needs no cluster."""
    if not sweep.seeds or len(set(sweep.seeds)) < len(sweep.seeds):
        raise RecipeError(f"--seeds requires at least one seed and no duplicates, got {list(sweep.seeds)}")
    if sweep.trials is not None and sweep.trials < 1:
        raise RecipeError(f"--trials {sweep.trials}: the unchanged recipe is one trial; set at least 1")
    if sweep.concurrent is not None and sweep.concurrent < 1:
        raise RecipeError(f"--concurrent {sweep.concurrent}: no trial could run; set at least 1")
    if sweep.retries < 0:
        raise RecipeError(f"--retries {sweep.retries}: set at least 0")
    check_recipe(sweep.recipe)
    if sweep.space or sweep.trials != 1:
        spaces.check_space(sweep.space, sweep.recipe)
    for path, domain in sweep.domains.items():
        for value in spaces.values_to_try(domain):
            if redacted(str(value)) != str(value):
                raise RecipeError(
                    f"search space: {path}={redacted(str(value))!r} contains a password, but values are stored in records"
                )
            with spaces.named(f"{path}={value!r}"):
                check_recipe(sweep.recipe.replace(path, value))
        for value in spaces.draws(domain) if path.startswith("streams.") else ():
            with spaces.named(f"{path}={value!r}"):
                check_streams(sweep.recipe.replace(path, value))
    if sweep.searcher == "grid":
        points = len(grid(sweep))
        if sweep.trials not in (None, points):
            raise RecipeError(
                f"--trials {sweep.trials}: the grid has {points} trials with the unchanged recipe; set --trials {points}, "
                "omit it, or use --searcher random"
            )


def grid(sweep: Sweep) -> list[dict[str, Any]]:
    """Return the changes of every trial of a grid, without duplicates; the unchanged recipe is first."""
    own = own_values(sweep)
    points = [{path: value for path, value in point.items() if value != own[path]} for point in spaces.grid(sweep.domains)]
    return [{}, *(point for point in points if point)]


def count(sweep: Sweep) -> int:
    """Return the number of trials."""
    return len(grid(sweep)) if sweep.trials is None or sweep.searcher == "grid" else sweep.trials


def own_values(sweep: Sweep) -> dict[str, Any]:
    """Return the recipe's values of all settings in the space."""
    return spaces.values_of(sweep.recipe, list(sweep.space))


def records_of(sweep: Sweep, folder: Path) -> Records:
    """Return the records of the sweep's trials, which are stored in its folder or in ``run.storage``."""
    if sweep.recipe.run.storage is None:
        return Records(str(folder / "trials"))
    base, question, options = sweep.recipe.run.storage.partition("?")
    return Records(f"{base.rstrip('/')}/{sweep.name}{question}{options}")


def plan_of(sweep: Sweep, folder: Path, parent: RunHandle) -> Plan:
    """Return the settings that all trials of a sweep in a folder share; `parent` is its MLflow run."""
    return Plan(
        sweep=sweep.name,
        as_it_stands=with_uploaded_shards(sweep.recipe).to_json(secrets=True),
        folder=str(folder),
        experiment=experiment_of(sweep.recipe),
        parent=parent.run_id,
        seeds=sweep.seeds,
        run_id=str(record.read(folder).get("run", "")),
        source=source_tags(),
        methods=plugins.loaded(),
    )


def needs(recipe: Recipe) -> tuple[float, float]:
    """Return the CPUs and GPUs of a trial, including its workers and their reading."""
    run = recipe.run
    if in_process(recipe):
        return run.cpus_per_worker, run.gpus_per_worker
    reading = sum(stream.cpus for stream in recipe.streams.values())
    return run.num_workers * (run.cpus_per_worker + reading) + DRIVER, run.num_workers * run.gpus_per_worker


def resources(recipe: Recipe) -> tune.PlacementGroupFactory:
    """Return the resources that Tune reserves for a trial; with several workers, Ray Train reserves theirs."""
    cpus, gpus = needs(recipe) if in_process(recipe) else (DRIVER, 0.0)
    return tune.PlacementGroupFactory([{"CPU": cpus} | ({"GPU": gpus} if gpus else {})])


def at_once(recipe: Recipe, cpus: float, gpus: float, most: int | None = None) -> int:
    """Return the number of trials that fit on a cluster; raise RecipeError if not even one fits.

    Args:
        recipe: The recipe of the trials.
        cpus: CPUs of the cluster.
        gpus: GPUs of the cluster.
        most: Upper limit. If None, no limit.
    """
    need = needs(recipe)
    fits = min(int((have + 1e-9) // want) for have, want in zip((cpus, gpus), need, strict=True) if want)
    if fits < 1:
        raise RecipeError(
            f"a trial needs {need[0]:g} CPUs and {need[1]:g} GPUs, but the cluster has {cpus:g} and {gpus:g}. Lower "
            "run.num_workers, run.cpus_per_worker or run.gpus_per_worker"
        )
    return min(fits, most or fits)
