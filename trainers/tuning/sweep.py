"""A sweep: which trials, how many at a time, Ray Tune over them, and what is kept of the best."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow.fs
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search.sample import Float

from multicse.data.errors import redacted
from multicse.trainers import registry
from multicse.trainers.engine.checks import check
from multicse.trainers.engine.launch import resolve, with_uploaded_shards
from multicse.trainers.engine.mlflow_server import source_tags
from multicse.trainers.engine.tracking import RunHandle
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning import space as spaces
from multicse.trainers.tuning.room import resources
from multicse.trainers.tuning.searchers import Listed, Once, Proposals, Studied
from multicse.trainers.tuning.space import SearchSpace
from multicse.trainers.tuning.trial import PERCENT, Plan, curve_of, in_process, percent_of, steps_of, trial
from multicse.trainers.tuning.watch import Watch

LEAST_EVALUATIONS = 10
"""Evaluations that a trial has at least under a scheduler: what is measured seldom cannot be stopped early."""
GRACE = 60.0
"""Percent of a trial that ASHA waits: in the warm-up the settings that are the best in the end are often behind."""
KEPT = 3
"""ASHA goes on with the best one of so many."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep does."""

    recipes: Mapping[str, Recipe]
    """The recipes that are varied, by pipeline; resolved."""
    spaces: Mapping[str, SearchSpace]
    """What varies, by pipeline."""
    space: str
    """The spaces' name."""
    trials: int | None
    """How many, the recipes as they stand included; none, of a grid: as many as it has."""
    searcher: Literal["optuna", "random", "grid"] = "optuna"
    scheduler: Literal["asha", "pbt", "none"] = "asha"
    seeds: tuple[int, ...]
    """Of every configuration; the mean counts."""
    retries: int = 1
    """Times that a failed trial is tried again."""
    concurrent: int | None = None
    """Trials at a time; none: as many as fit."""

    @property
    def name(self) -> str:
        """``sweep-PIPELINE-RECIPE-1a2b3c``: what is varied, and a hash of all that decides the sweep."""
        names = "-".join(recipe.name.replace("/", "-") for recipe in self.recipes.values())
        return f"sweep-{names}-{self.identity()[:6]}"

    def identity(self) -> str:
        """A hash of what decides which trials there are; 12 hex digits. Resources and places do not."""
        parts = {
            "recipes": {name: recipe.identity() for name, recipe in self.recipes.items()},
            "spaces": {
                name: {path: _described(domain) for path, domain in space.items()} for name, space in self.spaces.items()
            },
            "how": [self.trials, self.searcher, self.scheduler, self.seeds],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]

    @property
    def first(self) -> Recipe:
        """The recipe whose run settings hold for all: tracking, storage, resources."""
        return next(iter(self.recipes.values()))

    @property
    def metric(self) -> str:
        """Task and metric that trials are compared by, as figures and tables name it."""
        from multicse.evaluation.registry import make_tasks
        from multicse.trainers.engine.loop import lower_is_better

        config = self.first.evaluation
        (task,) = make_tasks([str(config.select)], config.data)
        return f"{'-' if lower_is_better(task) else ''}{task.name}/{task.primary}"

    @property
    def experiment(self) -> str:
        """Of MLflow."""
        return self.first.run.experiment or "+".join(dict.fromkeys(recipe.paper for recipe in self.recipes.values()))


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
        if recipe.evaluation.every > often:
            recipe = recipe.replace("evaluation.every", often)
    return recipe


def check_sweep(sweep: Sweep) -> None:
    """Raise RecipeError for a sweep that cannot run; no cluster is needed."""
    if not sweep.seeds or len(set(sweep.seeds)) < len(sweep.seeds):
        raise RecipeError(f"--seeds takes at least one seed, each once, got {list(sweep.seeds)}")
    if sweep.trials is not None and sweep.trials < len(sweep.recipes):
        raise RecipeError(f"--trials {sweep.trials} is less than the {len(sweep.recipes)} recipes as they stand; give more")
    if sweep.scheduler == "pbt":
        _check_pbt(sweep)
    selects = {recipe.evaluation.select for recipe in sweep.recipes.values()}
    if len(selects) > 1:
        raise RecipeError(
            f"the recipes select on different tasks, {sorted(map(str, selects))}; give --evaluation.select ONE"
        )
    for pipeline, recipe in sweep.recipes.items():
        _check_secrets({"run.storage": [recipe.run.storage]})
        _check_secrets({path: spaces.values_to_try(path, domain) for path, domain in sweep.spaces[pipeline].items()})
        check(recipe)
        spaces.check(sweep.spaces[pipeline], recipe)
        if sweep.searcher == "optuna" or sweep.scheduler == "pbt":
            spaces.holding(sweep.spaces[pipeline], recipe)
        for path, domain in sweep.spaces[pipeline].items():  # what the shards have to do with
            for value in spaces.values_to_try(path, domain) if path.startswith("streams.") else ():
                check(recipe.replace(path, value))
    if sweep.searcher == "grid":
        assignments(sweep)


def _check_secrets(values: Mapping[str, Iterable[object]]) -> None:
    """Raise RecipeError for a password in what Ray Tune writes down beside its trials."""
    for path, several in values.items():
        for value in several:
            if redacted(str(value)) != str(value):
                raise RecipeError(
                    f"{path}={redacted(str(value))!r} holds a password, which Ray Tune would write down with its trials. "
                    "Give it where the protocol looks for it, for S3 in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                )


def _check_pbt(sweep: Sweep) -> None:
    if len(sweep.recipes) > 1:
        raise RecipeError(
            "--scheduler pbt copies weights from trial to trial, which two methods cannot; sweep one at a time"
        )
    if not in_process(sweep.first):
        raise RecipeError(
            f"--scheduler pbt with run.workers={sweep.first.run.workers}: a trial of several workers is Ray Tune over Ray "
            "Train, where Tune holds no checkpoints, so PBT would copy nothing; set run.workers 1, or use --scheduler asha"
        )
    if len(sweep.seeds) > 1:
        raise RecipeError("--scheduler pbt changes a run while it goes on, which has one seed; give one of --seeds")
    if sweep.searcher != "random":
        raise RecipeError(f"--searcher {sweep.searcher} with --scheduler pbt: PBT searches by itself; use --searcher random")


def assignments(sweep: Sweep) -> list[dict[str, Any]]:
    """Every trial of a grid or random search, in order: first the recipes as they stand."""
    trials = [_config(sweep, pipeline, own_values(sweep, pipeline)) for pipeline in sweep.recipes]
    seen = [trial["changes"] for trial in trials]
    if sweep.searcher == "grid":
        for pipeline, space in sweep.spaces.items():
            trials += [
                config
                for values in spaces.grid(space)
                if (config := _config(sweep, pipeline, values))["changes"] not in seen
            ]
        if sweep.trials is not None and sweep.trials < len(trials):
            raise RecipeError(
                f"--trials {sweep.trials}: the grid of {sweep.space!r} has {len(trials)} with the recipe as it stands; "
                f"give --trials {len(trials)} or none, or --searcher random"
            )
        return trials
    count = (sweep.trials or 0) - len(trials)
    drawn = {
        pipeline: spaces.draws(space, count, sweep.seeds[0] + number)
        for number, (pipeline, space) in enumerate(sweep.spaces.items())
    }
    names = list(sweep.recipes)
    return trials + [_config(sweep, names[i % len(names)], drawn[names[i % len(names)]][i]) for i in range(count)]


def count(sweep: Sweep) -> int:
    """How many trials there are."""
    return len(assignments(sweep)) if sweep.trials is None else sweep.trials


def own_values(sweep: Sweep, pipeline: str) -> dict[str, Any]:
    """The recipe's own value of everything that its space varies."""
    return spaces.values_of(sweep.recipes[pipeline], list(sweep.spaces[pipeline]))


def _config(sweep: Sweep, pipeline: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"pipeline": pipeline, "changes": {pipeline: dict(values)}}


def storage_of(sweep: Sweep, folder: Path) -> str:
    """Where Tune keeps trials and checkpoints."""
    return sweep.first.run.storage or str(folder / "tune")


def exists(sweep: Sweep, folder: Path) -> bool:
    """Whether this sweep was begun and Tune wrote down its trials.

    Raises RecipeError where the file of them is cut off, as a driver leaves it that is killed while it writes.
    """
    place = _place(sweep, folder)
    files, path = pyarrow.fs.FileSystem.from_uri(place if "://" in place else str(Path(place).resolve()))
    listed = files.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True))
    newest = max((info.path for info in listed if info.base_name.startswith("experiment_state-")), default=None)
    if newest is None:
        return False
    with files.open_input_stream(newest) as source:
        try:
            json.loads(source.read())
        except ValueError as error:
            raise RecipeError(
                f"{newest}, the list of the sweep's trials, is cut off: its driver was killed while it wrote. Put back "
                "a copy of it if there is one, or remove the folder that it is in and begin again; what the trials came to "
                f"is in MLflow ({error})"
            ) from None
    return True


def plan_of(sweep: Sweep, folder: Path, parent: RunHandle) -> Plan:
    """What the trials take along."""
    return Plan(
        recipes={name: with_uploaded_shards(recipe).to_json(secrets=True) for name, recipe in sweep.recipes.items()},
        folder=str(folder),
        experiment=sweep.experiment,
        parent=parent.run_id,
        metric=sweep.metric,
        seeds=sweep.seeds,
        source=source_tags(),
        methods=registry.loaded(),
    )


def run(sweep: Sweep, plan: Plan, at_once: int, watch: Watch, resume: bool) -> tune.ExperimentAnalysis:
    """Run the trials, or go on with them; Tune's trials and what they reported."""
    folder = Path(plan.folder)
    storage = storage_of(sweep, folder)
    # What a killed driver leaves is what it had so long before.
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "2" if "://" in storage else "0.2")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # its banner, which verbose=0 does not silence
    os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(at_once)  # a cluster grows for all of them together
    experiment = tune.Experiment(
        sweep.name,
        tune.with_resources(
            tune.with_parameters(trial, plan=plan), lambda config: resources(sweep.recipes[config["trial"]["pipeline"]])
        ),
        storage_path=storage,
        # What is stored may name one of a moment ago. PBT's copies begin from one while the trial that wrote it goes on, and
        # Tune counts twice what PBT asks for.
        checkpoint_config=tune.CheckpointConfig(num_to_keep=16 if sweep.scheduler == "pbt" else 4),
        max_failures=sweep.retries,
    )
    before = tune.ExperimentAnalysis(_place(sweep, folder)) if resume else None
    return tune.run(
        experiment,
        search_alg=Once(experiment, _proposals(sweep), count(sweep), at_once, before.trials if before else ()),
        scheduler=make_scheduler(sweep, before),
        resume="AUTO+ERRORED" if resume else None,
        # Importing torch and transformers takes longer than a small trial. A trial of several workers that is stopped
        # early still waits for Ray Train: Tune would give up the next trial, which finds its actor taken.
        reuse_actors=all(in_process(recipe) for recipe in sweep.recipes.values()),
        raise_on_failed_trial=False,
        callbacks=[watch],
        verbose=0,
    )


def _proposals(sweep: Sweep) -> Proposals:
    if sweep.searcher != "optuna":
        return Listed(assignments(sweep))
    own = {name: own_values(sweep, name) for name in sweep.recipes}
    return Studied(
        {name: spaces.holding(space, sweep.recipes[name]) for name, space in sweep.spaces.items()},
        first=[{"pipeline": name, "changes": own} for name in sweep.recipes],
        seed=sweep.seeds[0],
        n_startup_trials=min(10, max(4, (sweep.trials or 0) // 4)),
        constant_liar=True,  # trials at the same time are not all sent to one place
    )


def make_scheduler(sweep: Sweep, before: tune.ExperimentAnalysis | None = None) -> TrialScheduler | None:
    """Ray's ASHA (Li et al., 2020) or PBT (Jaderberg et al., 2017).

    before: what an earlier driver did. Tune does not keep what a scheduler knows, so ASHA is told again of the trials with
        which it compares; PBT compares with what comes.
    """
    if sweep.scheduler == "none":
        return None
    judged = {"time_attr": PERCENT, "metric": "score", "mode": "max"}
    if sweep.scheduler == "pbt":
        ((pipeline, space),) = sweep.spaces.items()
        domains = spaces.sampled(space)
        return PopulationBasedTraining(
            **judged,
            perturbation_interval=interval(sweep),
            hyperparam_mutations={"trial": {"changes": {pipeline: domains}}},
            custom_explore_fn=partial(_within, pipeline, domains),
        )
    asha = AsyncHyperBandScheduler(**judged, max_t=100, grace_period=GRACE, reduction_factor=KEPT)
    if before is not None:
        for known in before.trials:
            asha.on_trial_add(None, known)
            last = known.last_result or {}
            for step, score in curve_of(last).items():
                percent = percent_of(step, last["steps"], last["judged"])
                asha.on_trial_result(None, known, {PERCENT: percent, "score": score})
    return asha


def _within(pipeline: str, domains: Mapping[str, Float], config: dict[str, Any]) -> dict[str, Any]:
    """PBT multiplies numbers by 0.8 or 1.2; what leaves its range by that is put back to the range's end."""
    values = config["trial"]["changes"][pipeline]
    for path, domain in domains.items():
        values[path] = min(max(values[path], domain.lower), domain.upper)
    return config


def interval(sweep: Sweep) -> float:
    """The share of a trial, in percent, from one evaluation to the next: how often PBT hears of it."""
    return 100 * sweep.first.evaluation.every / steps_of(sweep.first) * (1 - 1e-9)  # not above it by a rounding error


def _place(sweep: Sweep, folder: Path) -> str:
    """The sweep's folder in its storage."""
    base, question, options = storage_of(sweep, folder).partition("?")
    return f"{base.rstrip('/')}/{sweep.name}{question}{options}"
