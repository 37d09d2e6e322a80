"""From a recipe to a finished run: checks, Ray, and `Run`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from multicse.data.shard_urls import absolute
from multicse.evaluation import registry as tasks
from multicse.trainers.engine.checks import check_cluster, check_encoder, check_files, check_places, check_vectors
from multicse.trainers.engine.cluster import capacity, opening, quiet
from multicse.trainers.engine.run import Run, experiment_of
from multicse.trainers.engine.stop import Stop
from multicse.trainers.engine.workers import with_uploaded_shards
from multicse.trainers.jobs import STORAGE, in_copy, kept, results_folder
from multicse.trainers.recipe import Recipe


def run_recipe(recipe: Recipe) -> dict[str, Any]:
    """Run a recipe from checks to export.

    An unfinished run of this recipe in the output folder is resumed. A finished run is not repeated.

    Returns:
        The summary, which is also written to ``OUTPUT/summary.json``.

    Raises:
        RecipeError: If the recipe cannot run or the output folder contains another run; nothing has been started then.
        DataError: If the data cannot be read.
        Interrupted: After Ctrl-C or SIGTERM.
    """
    if not recipe.run.verbose:
        quiet()
    tracked = bool(recipe.run.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"))
    recipe = resolve(recipe)
    run = Run(recipe, tracked=tracked)
    ready = run.state() == "delivered"  # then its inputs and a cluster are not needed
    with Stop() as stop:
        if not ready:
            check_files(recipe)
            run.owner()
            _open_cluster(recipe, stop)
        with run:
            run.train(stop)
            run.deliver()
    return run.summary


def _open_cluster(recipe: Recipe, stop: Stop) -> None:
    """Check the encoder, start or join Ray meanwhile if there are workers, and check that the machines suffice."""
    if recipe.run.num_workers:
        with opening(recipe, experiment_of(recipe)):
            check_encoder(recipe)
            check_vectors(recipe)
        stop.listen()
        cpus, gpus, nodes = capacity()
        check_cluster(recipe, cpus, gpus, nodes)
        check_places(with_uploaded_shards(recipe), nodes)
    else:
        check_encoder(recipe)
        check_vectors(recipe)
        import torch  # here: before it, a module of ours sets how long its threads spin

        check_cluster(recipe, gpus=torch.cuda.device_count())


def resolve(recipe: Recipe) -> Recipe:
    """Return the recipe with absolute paths (workers run in other folders), tracking URI and storage.

    The latter two come from the environment if the recipe does not set them.
    """
    run = recipe.run
    storage = run.storage or os.environ.get(STORAGE) or None
    if storage and "://" not in storage:
        storage = str(results_folder(storage) if in_copy() else Path(storage).expanduser().resolve())
    database = kept(Path("mlflow.db"), storage).resolve()
    uri = None
    if run.report_to == "mlflow":
        uri = run.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{database}"
    output = kept(Path(run.output_dir), storage).resolve()
    recipe = recipe.changed({"run.tracking_uri": uri, "run.output_dir": str(output), "run.storage": storage})
    return recipe.with_places({"place": _absolute, "shards": absolute, "task": tasks.absolute})


def _absolute(place: str) -> str:
    """Return the absolute path of a file or folder; the ID of a model stays."""
    return str(Path(place).resolve()) if Path(place).exists() else place
