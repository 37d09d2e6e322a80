"""Run a recipe from the driver: checks, MLflow run, Ray Train, export, summary."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

from multicse import plugins
from multicse.data import shard_writer
from multicse.data.errors import redacted
from multicse.data.executor import started
from multicse.data.shard_urls import absolute
from multicse.evaluation import registry as tasks
from multicse.evaluation.tasks.sts import PairTask
from multicse.models.sentence_encoder import CardText
from multicse.trainers.engine import record
from multicse.trainers.engine.checkpoint import NODE_FOLDER, CheckpointError, Store, load_method, module_encoder
from multicse.trainers.engine.checks import (
    check_cluster,
    check_places,
    check_recipe,
    check_vectors,
    describe_known_shards_of,
)
from multicse.trainers.engine.cluster import capacity, opening, quiet, start_ray
from multicse.trainers.engine.hosts import Host, RayHost, Stopped
from multicse.trainers.engine.journal import Journal, histories
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.mlflow_server import brief, resolve_uri
from multicse.trainers.engine.output import (
    CHECKPOINT,
    EXPORT,
    JOURNAL,
    OUTLIVES,
    RAY,
    RECIPE,
    SKIPPED,
    SUMMARY,
    WRITER,
    Output,
    experiment_of,
    locked,
)
from multicse.trainers.engine.progress import Board, ProgressLine
from multicse.trainers.engine.stop import Interrupted, Stop
from multicse.trainers.engine.text_fit import prepare_encoder
from multicse.trainers.engine.tracking import RunHandle, Tracker, drain
from multicse.trainers.jobs import STORAGE, in_copy, kept, results_folder
from multicse.trainers.method import Method
from multicse.trainers.recipe import ExportConfig, Recipe, RecipeError

log = logging.getLogger(__name__)


class LostWorker(ValueError):
    """A training worker, or a node that it needs, died more often than ``run.max_failures`` allows."""

    exit_code = 1


def _train_worker(settings: dict[str, Any]) -> dict[str, Any]:
    """Run the loop of one rank while the actor that reads its data starts."""
    with started(), contextlib.suppress(Stopped):
        return _train_rank(settings)
    return {}


def _train_rank(settings: dict[str, Any]) -> dict[str, Any]:
    for name, source in settings["methods"].items():
        plugins.load_source(name, source)
    import ray
    from ray.train import get_context

    recipe, output, board = Recipe.from_json(settings["recipe"]), Path(settings["output"]), settings["board"]
    recipe.opened.update(ray.get(settings["shards"]))
    if not recipe.run.verbose:
        quiet()
    rank, node = get_context().get_world_rank(), get_context().get_node_rank()
    # The workers of a node share the folder into which one of them downloads a checkpoint.
    local = output / CHECKPOINT / (f"{NODE_FOLDER}{node}" if node else "")
    host = RayHost(Store(settings["place"], local, recipe.run.keep_every, settings["run"]), board)
    if rank:
        return Engine(recipe, host, None).run()
    with (
        locked(output, name=WRITER, wait=OUTLIVES),
        Tracker(output / JOURNAL, settings["uri"], settings["run_id"], board.put) as tracker,
    ):
        return Engine(recipe, host, tracker).run()


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
    start = time.time()
    if not recipe.run.verbose:
        quiet()
    elsewhere = bool(recipe.run.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"))
    recipe = resolve(recipe)
    output = Output(recipe)
    if (summary := output.finished()) is not None:
        return complete(recipe, output, summary, elsewhere)
    check_recipe(recipe)
    output.owner()
    check_vectors(recipe)
    with Stop() as stop:
        if recipe.run.num_workers:
            with opening(recipe, experiment_of(recipe)):
                start_ray(recipe)
                stop.listen()
            cpus, gpus, nodes = capacity()
            check_cluster(recipe, cpus, gpus, nodes)
            check_places(with_uploaded_shards(recipe), nodes)
        else:
            import torch  # here: before it, a module of ours sets how long its threads spin

            check_cluster(recipe, gpus=torch.cuda.device_count())
        with locked(output.folder):
            if (summary := output.finished()) is not None:  # by another process meanwhile
                return summary
            with locked(output.folder, name=WRITER, wait=OUTLIVES):
                handle = output.start_or_resume()
            return _train_and_export(recipe, handle, output, stop, start)


def _train_and_export(recipe: Recipe, handle: RunHandle, output: Output, stop: Stop, start: float) -> dict[str, Any]:
    status = "FAILED"
    try:
        prepare_encoder(recipe)
        result, checkpoint = train(recipe, handle, output.folder, output.store, stop=stop)
        handle.drain(output.journal)
        summary = deliver(recipe, handle, result, checkpoint, output.folder)
        summary["seconds"] = time.time() - start
        output.remember_inputs()
        status = "FINISHED"
    except (KeyboardInterrupt, Interrupted):
        status = "KILLED"
        print(f"\nStopped. Run the same command again to resume from {output.folder}", file=sys.stderr)
        raise
    finally:
        sent = handle.finish(status)
    summary["sent"] = sent
    record.take(output.folder, [SUMMARY])
    output.finish(summary)
    return summary


def complete(recipe: Recipe, output: Output, summary: dict[str, Any], elsewhere: bool) -> dict[str, Any]:
    """Do what a command requires of a finished run, if the files in its folder suffice and it has not been done.

    A missing export is written again, the export is registered and uploaded, and metrics and files are sent to trackers. The
    names of other new settings, which have no effect, are printed.

    Args:
        recipe: Recipe with absolute paths.
        output: Folder of the run.
        summary: Summary of the run.
        elsewhere: Track the run in ``run.tracking_uri``, which the user has set.

    Returns:
        The summary, with what has changed.

    Raises:
        ValueError: If it cannot be done. The same command repeats it.
    """
    from multicse.trainers.engine.export import check_hub, push

    run, folder, file = recipe.run, output.folder, output.folder / SUMMARY
    was = Recipe.from_json((folder / RECIPE).read_text())
    lost = not (folder / EXPORT / "modules.json").is_file()
    hub = run.push_to_hub if run.push_to_hub != was.run.push_to_hub or "hub" not in summary else None
    named = run.register_as if run.register_as != was.run.register_as else None
    known, tracked, sent = summary["tracking_uri"], run.report_to == "mlflow", summary.get("sent", True)
    moved = tracked and (not known or (elsewhere and run.tracking_uri != known and resolve_uri(run.tracking_uri) != known))
    send = tracked and bool(moved or lost or named or not sent)
    asked = {"the export": lost, f"upload to {hub}": hub, f"registration as {named}": named}
    asked |= {f"tracking at {run.tracking_uri}": tracked and (moved or not sent)}
    if done := [what for what, wanted in asked.items() if wanted]:
        if hub is not None:
            check_hub(hub, "run.push_to_hub")
        with locked(folder):
            handle = output.track_elsewhere(summary["mlflow_run_id"]) if moved else _handle(summary)
            handle.journal = output.journal
            ended = file.stat().st_mtime
            summary |= {"mlflow_run_id": handle.run_id, "tracking_uri": handle.uri, "sent": sent and not send}
            if hub is not None:
                summary.pop("hub", None)
            output.finish(summary)  # first: after a failure the same command repeats the rest
            given = {f"run.{name}": getattr(run, name) for name in ("register_as", "push_to_hub")}
            given |= {"run.tracking_uri": handle.uri, "run.report_to": moved and "mlflow"}
            was = was.changed({name: value for name, value in given.items() if value})
            (folder / RECIPE).write_text(was.to_json())
            if lost:
                _export_again(recipe.replace("run.push_to_hub", None), handle, output, summary)
            if send:
                summary["sent"] = drain(output.journal, handle.uri, handle.run_id, 10, "FINISHED", ended)
                output.finish(summary)
            if hub is not None:
                summary["hub"] = push(folder / EXPORT, hub, output.exported_files())
                output.finish(summary)
            os.utime(file, (ended, ended))  # the end of the run
        print(f"Done for the finished run: {', '.join(done)}")
    ignored = ("callbacks", "logging_steps", "save_steps", "keep_every", "storage", "experiment")
    if names := [f"run.{name}" for name in ignored if redacted(str(getattr(run, name))) != str(getattr(was.run, name))]:
        print(f"Without effect on a finished run: {', '.join(names)} (--run.overwrite trains again)")
    return summary


def _handle(summary: dict[str, Any]) -> RunHandle:
    """Return the MLflow run in a summary."""
    return RunHandle(summary["mlflow_run_id"] or "", summary["tracking_uri"])


def _export_again(recipe: Recipe, handle: RunHandle, output: Output, summary: dict[str, Any]) -> None:
    """Write the export of a finished run from its last checkpoint, and update its summary."""
    last = Path(summary["checkpoint"])
    checkpoint = last if last.is_dir() else output.store.newest()
    try:
        if checkpoint is None:
            raise CheckpointError(f"{output.store.place} contains no complete checkpoint")
        result = {**summary, "skipped": {}, "skips": summary["skipped"]}
        summary |= deliver(recipe, handle, result, checkpoint, output.folder)
    except ValueError as error:
        raise RecipeError(
            f"the export of the finished run in {output.folder} is missing and cannot be written again: {error}. Restore "
            "it, or pass --run.overwrite to train again"
        ) from error


def train(
    recipe: Recipe,
    handle: RunHandle,
    output: Path,
    store: Store,
    callbacks: Sequence[Any] = (),
    stop: Stop | None = None,
) -> tuple[dict[str, Any], Path]:
    """Train from the latest checkpoint to the last step.

    Args:
        recipe: Recipe with absolute paths.
        handle: MLflow run.
        output: Folder of the run.
        store: Checkpoints of the run.
        callbacks: Callbacks of Ray Train's run, if there are workers.
        stop: Signal handling of the caller. If None, signals are left to the caller.

    Returns:
        Result of the loop, and the folder of the last checkpoint.

    Raises:
        Interrupted: If a signal was received; the checkpoint of that step is kept.
        CheckpointError: If no checkpoint in the store can be read.
        LostWorker: If a worker or node was lost.
    """
    stop = stop or Stop()
    with stop.patient():
        if recipe.run.num_workers:
            result = _in_workers(recipe, handle, output, store, callbacks, stop)
        else:
            host = Host(store, lambda: stop.asked is not None, gpu=recipe.run.gpus_per_worker > 0)
            with (
                contextlib.suppress(Stopped),
                Tracker(output / JOURNAL, handle.uri, handle.run_id, ProgressLine().show) as tracker,
            ):
                result = Engine(recipe, host, tracker).run()
    folder = Path(result.pop("rescued")) if "rescued" in result else store.newest()
    if folder is None:
        raise CheckpointError(f"the last checkpoint in {store.place} is damaged. Run the same command again to replace it")
    Journal(output / JOURNAL, handle.run_id, handle.uri).take(folder / JOURNAL)  # if rank 0 ran on another node
    return result, folder  # a stopped loop has raised Interrupted


def _in_workers(
    recipe: Recipe, handle: RunHandle, output: Path, store: Store, callbacks: Sequence[Any], stop: Stop
) -> dict[str, Any]:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    run = recipe.run
    shutil.rmtree(output / RAY, ignore_errors=True)  # left by a killed driver
    board = Board()
    uploaded = with_uploaded_shards(recipe)
    trainer = TorchTrainer(
        _train_worker,
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
    print(f"Starting {workers} ...", file=sys.stderr, flush=True)
    try:
        result: dict[str, Any] = _outcome(trainer, board, stop).return_value
        return result
    except (ray.train.TrainingFailedError, ray.exceptions.RayError) as error:
        raise _worker_error(error) from error
    finally:
        board.clear()
        shutil.rmtree(output / RAY, ignore_errors=True)


def _outcome(trainer: Any, board: Board, stop: Stop) -> Any:
    """Return the trainer's result; meanwhile the main thread shows progress and passes a signal on to the workers."""
    if not stop.main:
        return trainer.fit()
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(trainer.fit())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True, name="ray-train").start()
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
    return outcome.result()


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


def deliver(recipe: Recipe, handle: RunHandle, result: dict[str, Any], checkpoint: Path, output: Path) -> dict[str, Any]:
    """Export the selected weights with card and figures, and return the summary; `RunHandle.finish` uploads them to MLflow.

    Args:
        recipe: Recipe with absolute paths.
        handle: MLflow run.
        result: Result of the loop. Its lists of skipped samples are moved to a file of the output folder.
        checkpoint: Folder of the last checkpoint.
        output: Folder of the run.

    Raises:
        ExportError: If the exported folder does not reproduce the embeddings of the checkpoint.
    """
    from multicse.trainers.engine.card import library_versions, model_card
    from multicse.trainers.engine.export import fit_of, push, write_export

    export, method = output / EXPORT, load_method(checkpoint, recipe)

    def take(names: list[str]) -> None:
        record.take(output, [f"{EXPORT}/{name}" for name in names])

    numbers = {name: result.get(name) for name in ("before", "baseline", "after", "best_step")}
    facts = json.loads(recipe.to_json()), describe_known_shards_of(recipe), numbers, library_versions()

    def card(text: CardText) -> str:
        if text.whitened:
            result["whitened"] = text.whitened
        return model_card(*facts, text)

    try:
        exported = write_export(method.sentence_encoder, export, card, fit=fit_of(recipe, recipe.export), take=take)
    except ValueError as error:
        if recipe.export == ExportConfig():
            raise
        # A failed whitening must not cost the model.
        log.error("The model is exported without export.whiten: %s", error)
        exported = write_export(method.sentence_encoder, export, card, take=take)
    skipped = {name: items for name, items in result.pop("skipped").items() if items}
    skips = {name: count for name, count in result.pop("skips").items() if count}
    if skipped:
        record.take(output, [SKIPPED])
        (output / SKIPPED).write_text(json.dumps(skipped, indent=2))
    try:
        log_figures(recipe, method, handle)
    except ValueError as error:  # the encoder has collapsed
        log.warning("The remaining figures are skipped: %s", error)
    if name := recipe.run.push_to_hub:
        try:
            result["hub"] = push(export, name, exported)
        except Exception as error:
            text = "The model was not uploaded to the Hugging Face Hub: %s. To upload it later: hf upload %s %s"
            log.error(text, brief(error), name, export)
    return {
        "recipe": recipe.name,
        "identity": recipe.identity(),
        **result,
        "skipped": skips,
        "export": str(export),
        "checkpoint": str(checkpoint),
        "mlflow_run_id": handle.run_id if handle.uri else None,
        "tracking_uri": handle.uri,
    }


def log_figures(recipe: Recipe, method: Method, handle: RunHandle) -> None:
    """Draw alignment and uniformity over training, and for rated pairs the similarity by rating."""
    import torch

    from multicse.evaluation.figures.basic import alignment_uniformity_figure, similarity_by_gold_figure

    if recipe.evaluation.select is None:
        return
    over_training = histories(Path(recipe.run.output_dir) / JOURNAL)
    if found := over_training.get(f"{recipe.evaluation.select}-geometry"):
        points = [(step, values["alignment"], values["uniformity"]) for step, values in found]
        handle.log_figure("alignment_uniformity", alignment_uniformity_figure(points))
    for name, found in over_training.items():
        if found and "text_uniformity" in found[0][1]:  # items with captions
            points = [(step, values["alignment"], values["text_uniformity"]) for step, values in found]
            handle.log_figure(f"{name.replace(':', '_')}_over_training", alignment_uniformity_figure(points))
    (task,) = tasks.make_tasks([recipe.evaluation.select], recipe.evaluation.data)
    if isinstance(task, PairTask):
        cosines = task.similarities(module_encoder(method, torch.device("cpu")))
        handle.log_figure(f"similarity_{task.name}", similarity_by_gold_figure(cosines, task.gold, gold_is=task.gold_is))
