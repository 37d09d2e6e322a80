"""Training loop in workers of Ray Train, and what the driver does meanwhile."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

from multicse import plugins
from multicse.data import shard_writer
from multicse.data.executor import started
from multicse.trainers.engine.cluster import quiet
from multicse.trainers.engine.hosts import RayHost, Stopped
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.mlflow_server import brief
from multicse.trainers.engine.progress import Board, ProgressLine, announce
from multicse.trainers.engine.record import CHECKPOINT, JOURNAL, OUTLIVES, RAY, WRITER, locked
from multicse.trainers.engine.stop import Stop
from multicse.trainers.engine.store import NODE_FOLDER, Store
from multicse.trainers.engine.tracking import RunHandle, Tracker
from multicse.trainers.recipe import Recipe


class LostWorker(ValueError):
    """A training worker, or a node that it needs, died more often than ``run.max_failures`` allows."""

    exit_code = 1


def in_workers(recipe: Recipe, store: Store, handle: RunHandle, stop: Stop, callbacks: Sequence[Any] = ()) -> dict[str, Any]:
    """Run the training loop in ``run.num_workers`` workers and return its result.

    The main thread shows progress, and passes a signal on to the workers.

    Args:
        recipe: Recipe with absolute paths.
        store: Checkpoints of the run.
        handle: MLflow run.
        stop: Signal handling of the caller.
        callbacks: Callbacks of Ray Train's run.

    Raises:
        LostWorker: If a worker or node was lost.
    """
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    run, output, board = recipe.run, Path(recipe.run.output_dir), Board()
    shutil.rmtree(output / RAY, ignore_errors=True)  # left by a killed driver
    uploaded = with_uploaded_shards(recipe)
    trainer = _trainer_class()(
        _worker,
        train_loop_config={
            "recipe": uploaded.to_json(secrets=True),
            "shards": ray.put({name: uploaded.shards(name) for name in uploaded.streams}),
            "methods": plugins.loaded(),
            "output": str(output),
            "place": store.place,
            "run": store.run,
            "uri": handle.uri,
            "run_id": handle.run_id,
            "board": board,
        },
        scaling_config=ScalingConfig(
            num_workers=run.num_workers,
            use_gpu=run.gpus_per_worker > 0,
            resources_per_worker={"CPU": run.cpus_per_worker}
            | ({"GPU": run.gpus_per_worker} if run.gpus_per_worker else {}),
        ),
        run_config=RunConfig(
            # The checkpoints are ours: Ray registers its own seconds later, and another driver cannot find them.
            name=RAY,
            storage_path=str(output),
            failure_config=FailureConfig(max_failures=run.max_failures),
            callbacks=[*callbacks],
        ),
    )
    workers = "a training worker" if run.num_workers == 1 else f"{run.num_workers} training workers"
    announce(f"Starting {workers}")
    outcome: Future[Any] = Future()

    def fit() -> None:
        try:
            outcome.set_result(trainer.fit())
        except BaseException as error:
            outcome.set_exception(error)

    try:
        if stop.main:
            threading.Thread(target=fit, daemon=True, name="ray-train").start()
            _watch(outcome, board, stop)
        else:
            fit()
        result: dict[str, Any] = outcome.result().return_value
        return result
    except (ray.train.TrainingFailedError, ray.exceptions.RayError) as error:
        raise _worker_error(error) from error
    finally:
        board.clear()
        shutil.rmtree(output / RAY, ignore_errors=True)


def _trainer_class() -> Any:
    """Return Ray's TorchTrainer without the actor for its data sets: ours are read by actors of `data.executor`."""
    from ray.train.torch import TorchTrainer

    class Trainer(TorchTrainer):
        def _create_default_callbacks(self) -> list[Any]:  # by name: if a later Ray has another one, the actor is back
            return [one for one in super()._create_default_callbacks() if type(one).__name__ != "DatasetsCallback"]

    return Trainer


def _watch(outcome: Future[Any], board: Board, stop: Stop) -> None:
    """Show progress until there is an outcome, and pass a signal on to the workers."""
    line, passed_on = ProgressLine(), False
    while not outcome.done():
        wait([outcome], timeout=0.2)
        if stop.asked is not None and not passed_on:
            board.stop()
            passed_on = True
        with contextlib.suppress(Exception):  # the cluster is gone; the outcome has the error
            line.show(board.get())
    with contextlib.suppress(Exception):
        line.show(board.get())  # the last line


def _worker(settings: dict[str, Any]) -> dict[str, Any]:
    """Run the loop of one rank while the actor that reads its data starts."""
    import ray
    from ray.train import get_context

    with started(), contextlib.suppress(Stopped), contextlib.ExitStack() as stack:
        for name, source in settings["methods"].items():
            plugins.load_source(name, source)
        recipe, output, board = Recipe.from_json(settings["recipe"]), Path(settings["output"]), settings["board"]
        recipe.opened.update(ray.get(settings["shards"]))
        if not recipe.run.verbose:
            quiet()
        rank, node = get_context().get_world_rank(), get_context().get_node_rank()
        # The workers of a node share the folder into which one of them downloads a checkpoint.
        local = output / CHECKPOINT / (f"{NODE_FOLDER}{node}" if node else "")
        host = RayHost(Store(settings["place"], local, recipe.run.keep_every, settings["run"]), board)
        tracker = None
        if not rank:
            stack.enter_context(locked(output, name=WRITER, wait=OUTLIVES))
            tracker = stack.enter_context(Tracker(output / JOURNAL, settings["uri"], settings["run_id"], board.put))
        return Engine(recipe, host, tracker).train()
    return {}


def with_uploaded_shards(recipe: Recipe) -> Recipe:
    """Return the recipe for workers on other nodes: small packed folders are copied to `run.storage` if it is a URL."""
    storage = recipe.run.storage
    if storage is None or "://" not in storage:
        return recipe
    upload = partial(shard_writer.upload_small_shards, storage=storage)

    def task(name: str) -> str:
        kind, colon, place = name.partition(":")
        place, query, options = place.partition("?")
        return f"{kind}:{upload(place)}{query}{options}" if colon else name

    return recipe.with_places({"shards": upload, "task": task})


def _worker_error(error: Exception) -> Exception:
    """Return a worker's ValueError, OSError or non-finite loss instead of Ray's report of it, and Ray's report otherwise."""
    failures = [*(getattr(error, "worker_failures", None) or {}).values()]
    for failure in failures:
        inner = getattr(failure, "_base_exc", failure)
        inner = getattr(inner, "cause", inner)
        if isinstance(inner, (ValueError, ArithmeticError, OSError)):
            return inner
    lost = [failure for failure in failures if not hasattr(failure, "_base_exc")]  # the cause of the other errors
    if failures and not lost:
        return error
    return LostWorker(
        f"a worker or node was lost ({brief((lost or [error])[0])}). Run the same command again to resume from the last "
        "checkpoint; --run.max_failures 3 resumes automatically"
    )
