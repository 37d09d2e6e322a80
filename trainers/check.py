"""What is wrong with a recipe, found on the driver before any cluster resource is taken."""

from __future__ import annotations

import os
from urllib.parse import urlparse

from data.shards import ShardSet
from evaluation.registry import make_tasks
from trainers.recipe import Recipe, RecipeError


def check(recipe: Recipe, cpus: float | None = None, gpus: float | None = None, nodes: int = 1) -> None:
    """Raise RecipeError (or DataError for shards) when the recipe cannot run.

    Args:
        recipe: what to run.
        cpus, gpus: logical resources of the cluster; none: not checked.
        nodes: nodes of the cluster; with several, storage and tracking must be reachable from all.
    """
    _check_turns(recipe)
    _check_sizes(recipe)
    hidden = _hidden_size(recipe.encoder.path)
    try:
        recipe.method.check(hidden)
    except ValueError as error:
        raise RecipeError(f"encoder.path={recipe.encoder.path!r} does not fit the method: {error}") from None
    _check_task_names(recipe)
    for name in recipe.streams:
        _check_stream(recipe, name)
    if cpus is not None:
        _check_resources(recipe, cpus, gpus or 0)
    if nodes > 1:
        _check_reachable(recipe)


def _hidden_size(path: str) -> int:
    from transformers import AutoConfig

    try:
        return int(AutoConfig.from_pretrained(path).hidden_size)
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"encoder.path={path!r} is neither a folder with a config.json nor a model that the hub can give: {error}"
        ) from None


def _check_turns(recipe: Recipe) -> None:
    wanted = {stream for streams in recipe.turns.values() for stream in streams}
    if missing := wanted - set(recipe.streams):
        raise RecipeError(
            f"method {recipe.method.name!r} needs the stream {sorted(missing)}; streams has {sorted(recipe.streams)}"
        )
    if spare := set(recipe.streams) - wanted:
        raise RecipeError(
            f"streams.{sorted(spare)[0]} is used by no turn of {recipe.method.name!r} ({list(recipe.turns)}); remove it"
        )
    if set(recipe.optim) != set(recipe.turns):
        raise RecipeError(f"optim has {sorted(recipe.optim)}; the turns are {sorted(recipe.turns)}: one optimizer per turn")
    if recipe.lead not in recipe.streams:
        raise RecipeError(f"lead={recipe.lead!r} is no stream; allowed: {sorted(recipe.streams)}")


def _check_sizes(recipe: Recipe) -> None:
    workers = max(1, recipe.run.workers)
    for name, stream in recipe.streams.items():
        if stream.batch_size % workers:
            near = stream.batch_size // workers * workers or workers
            raise RecipeError(
                f"streams.{name}.batch_size={stream.batch_size} does not divide among run.workers={workers}; "
                f"use {near} or {near + workers}"
            )


def _check_stream(recipe: Recipe, name: str) -> None:
    stream = recipe.streams[name]
    shards = ShardSet.open(stream.shards)
    if shards.samples < stream.batch_size:
        raise RecipeError(
            f"streams.{name}: the shards hold {shards.samples} samples, fewer than one batch of {stream.batch_size}; "
            f"a batch would hold a sample twice, as its own negative. "
            f"Set streams.{name}.batch_size to at most {shards.samples}."
        )


def _check_task_names(recipe: Recipe) -> None:
    evaluation = recipe.evaluation
    development = [*([evaluation.select] if evaluation.select else []), *evaluation.watch]
    for name in development:
        if name.endswith(("-test", "-all")) or name in ("lee", "sickr", "sts12", "sts13", "sts14", "sts15", "sts16"):
            raise RecipeError(
                f"evaluation.select/watch: {name!r} is a test set, and a checkpoint must not be chosen on it; "
                "use stsb-dev, sickr-dev or lee-dev, and put test sets into evaluation.final"
            )
    make_tasks([*development, *evaluation.final], evaluation.data)


def _check_resources(recipe: Recipe, cpus: float, gpus: float) -> None:
    run = recipe.run
    reading = sum(stream.cpus for stream in recipe.streams.values()) * max(1, run.workers)
    needed = run.workers * run.cpus_per_worker + reading
    if run.workers and needed > cpus:
        raise RecipeError(
            f"run.workers={run.workers} x run.cpus_per_worker={run.cpus_per_worker:g} plus one reading task per stream "
            f"({reading:g}) need {needed:g} CPUs, the cluster has {cpus:g}: the run would wait for ever. "
            f"Lower run.workers, run.cpus_per_worker or streams.*.cpus."
        )
    if run.workers * run.gpus_per_worker > gpus:
        raise RecipeError(
            f"run.workers={run.workers} x run.gpus_per_worker={run.gpus_per_worker:g} need "
            f"{run.workers * run.gpus_per_worker:g} GPUs, the cluster has {gpus:g}"
        )


def _check_reachable(recipe: Recipe) -> None:
    run = recipe.run
    if run.storage is None or not urlparse(run.storage).scheme:
        raise RecipeError(
            f"run.storage={run.storage!r} is not reachable from several nodes; give a URL such as s3://bucket/runs"
        )
    tracking = run.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    if tracking.startswith(("sqlite:", "file:")) or not urlparse(tracking).scheme:
        raise RecipeError(
            f"run.tracking_uri={tracking!r} is a file of one node; start an MLflow server and give its http:// URI"
        )


def describe_shards_of(recipe: Recipe) -> list[dict[str, object]]:
    """Name, licence, source and size of what a recipe reads, for a model card."""
    rows: list[dict[str, object]] = []
    for name, stream in recipe.streams.items():
        shards = ShardSet.open(stream.shards)
        rows.append(
            {"name": f"{shards.name or name}", "licence": shards.licence, "source": shards.source, "samples": shards.samples}
        )
    return rows
