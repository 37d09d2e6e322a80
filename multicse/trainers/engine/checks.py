"""Validate a recipe on the driver before any cluster resource is used.

This module calls the checks of each part of a recipe and checks the recipe as a whole.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from multicse import clone
from multicse.data.errors import DataError, redacted
from multicse.data.settings import marked
from multicse.data.shard_urls import expand, is_hub_name
from multicse.data.shard_writer import SMALL
from multicse.evaluation.registry import DEVELOPMENT, is_development, known, make_tasks
from multicse.evaluation.task import EvaluationError
from multicse.plugins import own_module
from multicse.trainers.engine.cluster import PATIENCE, size_of, sizes_elsewhere
from multicse.trainers.engine.inputs import places
from multicse.trainers.engine.mlflow_server import resolve_uri
from multicse.trainers.engine.store import refuse_unwritable_storage
from multicse.trainers.jobs import in_copy, left_out, refuse_unwritable
from multicse.trainers.recipe import ExportConfig, Recipe, RecipeError, SGDConfig

log = logging.getLogger(__name__)

SHARE = 16
"""Samples of a contrastive batch per worker below which a warning is logged."""

Callback = Callable[[int, dict[str, float], Any], object]
"""Function that is called on rank 0 with the step, the metrics by name, and the `Engine`, whose `recipe`, `method`, `steps`
and `selection` it may read."""


def check_recipe(recipe: Recipe) -> None:
    """Raise RecipeError (DataError for shards) if the recipe cannot run; `check_cluster` checks the cluster."""
    check_files(recipe)
    check_encoder(recipe)


def check_files(recipe: Recipe) -> None:
    """Check settings, data and places. This is the part of `check_recipe` that takes no seconds."""
    check_settings(recipe)
    _check_sent(recipe)
    check_tasks(recipe)
    with _named():
        recipe.encoder.find()
        if recipe.run.report_to == "mlflow":
            resolve_uri(recipe.run.tracking_uri)
        refuse_unwritable("run.output_dir", Path(recipe.run.output_dir))
        if recipe.run.storage:
            refuse_unwritable_storage(recipe.run.storage)
    for setting, mark, value in marked(recipe):
        if mark.kind == "place":
            mark.on_each(partial(_refuse_absent, setting), value)
    _check_export(recipe)
    _warn_of_small_shares(recipe)
    check_streams(recipe)


def _refuse_absent(setting: str, place: str) -> str:
    if place.startswith(("/", "./", "../", "~")) and not Path(place).expanduser().exists():  # else, perhaps a model's ID
        raise RecipeError(f"{setting}: {place!r} not found; give an existing file or folder")
    return place


def check_encoder(recipe: Recipe) -> None:
    """Check whether the encoder's configuration and tokenizer fit the recipe. This imports libraries for models."""
    with _named():
        encoder = recipe.encoder.read()
        recipe.method.check(recipe, encoder)
        size = recipe.method.vector_size(encoder)
    _check_lengths(recipe, encoder)
    if size is not None and (large := [cut for cut in recipe.run.matryoshka if cut >= size]):
        raise RecipeError(f"run.matryoshka={large[0]}: the embeddings have {size} dimensions; set smaller sizes")


def check_streams(recipe: Recipe) -> None:
    """Raise RecipeError or DataError if the shards of a stream cannot be read as it is set."""
    for name, stream in recipe.streams.items():
        with _named(f"streams.{name}.shards: "):
            shards = recipe.shards(name)
        with _named(f"streams.{name}."):
            stream.check(shards)
            stream.segments_per_worker(shards, max(1, recipe.run.num_workers))
        if shards.samples < stream.batch_size:
            raise RecipeError(
                f"streams.{name}.batch_size={stream.batch_size}, but the shards contain {shards.samples} samples"
                f"{'' if stream.first is None else f' (streams.{name}.first)'}; a "
                f"batch would contain a sample twice, as its own negative. Set it to at most {shards.samples}."
            )


def check_vectors(recipe: Recipe) -> None:
    """Load the encoder and raise RecipeError if training, evaluation and export would give different vectors.

    This needs as much memory as the export. It is no part of `check_recipe`, which loads no weights.
    """
    with _named():
        recipe.encoder.check_vectors()


def check_cluster(recipe: Recipe, cpus: float | None = None, gpus: float = 0, nodes: int = 1) -> None:
    """Check that the cluster can run the recipe.

    Args:
        recipe: Recipe that passed `check_recipe`.
        cpus: Logical CPUs of the cluster. If None, resources are not checked.
        gpus: Logical GPUs. If the recipe uses none of them, a warning is logged.
        nodes: Number of nodes. Several nodes must be able to reach storage and tracking server.

    Raises:
        RecipeError: If CPUs or GPUs are missing, or storage or tracking URI are local.
    """
    run = recipe.run
    reading = sum(stream.cpus for stream in recipe.streams.values()) * max(1, run.num_workers)
    needed = run.num_workers * run.cpus_per_worker + reading
    if cpus is not None and run.num_workers and needed > cpus:
        raise RecipeError(
            f"run.num_workers={run.num_workers} x run.cpus_per_worker={run.cpus_per_worker:g} plus one reading task "
            f"per stream ({reading:g}) need {needed:g} CPUs, but the cluster has {cpus:g}: the run would wait forever. "
            f"Lower run.num_workers, run.cpus_per_worker or streams.*.cpus."
        )
    if cpus is not None and run.num_workers * run.gpus_per_worker > gpus:
        raise RecipeError(
            f"run.num_workers={run.num_workers} x run.gpus_per_worker={run.gpus_per_worker:g} need "
            f"{run.num_workers * run.gpus_per_worker:g} GPUs, but the cluster has {gpus:g}. "
            f"Lower run.num_workers, or set run.gpus_per_worker to 0 to train on CPUs (with run.precision fp32 or bf16)."
        )
    if gpus and not run.gpus_per_worker:
        log.warning("Training runs on CPUs; GPUs available: %g. Set --run.gpus_per_worker 1 to use them", gpus)
    if nodes > 1:
        _check_reachable(recipe)


def check_places(recipe: Recipe, nodes: int) -> None:
    """Check that all nodes of the cluster have the local files that the recipe names.

    Args:
        recipe: Recipe with absolute paths, and with small folders of shards in the storage (`launch.with_uploaded_shards`).
        nodes: Number of nodes that the cluster has or may get; nothing is checked for a single node.

    Raises:
        RecipeError: If another node does not have a file, or did not answer.
    """
    local = _local_places(recipe) if nodes > 1 else {}
    if not local:
        return
    remedy = (
        "Put it on a file system that all nodes share, or set a URL (`pack.py upload` copies packed shards of any size), a "
        "model ID of the Hugging Face Hub, or a folder of up to 100 MB that `ray job submit --working-dir .` sends"
    )
    elsewhere = sizes_elsewhere(local)
    code = clone() or Path(__file__).resolve().parents[2]
    for setting, paths in local.items():
        count, size = size_of(paths)
        what = f"{setting}: {paths[0]} ({count:,} files, {size / 1e6:,.1f} MB)"
        brought = all(in_copy(Path(path)) or (Path(path).is_relative_to(code) and size <= SMALL) for path in paths)
        if not elsewhere and not brought:
            raise RecipeError(
                f"{what} is on this machine, and the cluster has no other node yet to check. {remedy}. Or start "
                "a node that has the path first (min_workers)"
            )
        for address, found in elsewhere:
            if found is None:
                raise RecipeError(
                    f"{what}: node {address} did not report within {PATIENCE:g} s whether it has this; see `ray status`"
                )
            files, size_there = found[setting]
            if files < count or size_there < size:
                there = f"{files:,} files, {size_there / 1e6:,.1f} MB there" if files else "not found there"
                raise RecipeError(f"{what} is on this machine, but not on node {address} ({there}). {remedy}")


def _local_places(recipe: Recipe) -> dict[str, list[str]]:
    """Return the existing local paths that a recipe reads, by setting."""
    found: dict[str, list[str]] = {}
    for setting, _, place in places(recipe):
        paths = [place]
        if Path(place).is_absolute() and not Path(place).exists():
            with contextlib.suppress(DataError):  # does not exist
                paths = expand(place)[0]
        found.setdefault(setting, []).extend(path for path in paths if Path(path).is_absolute() and Path(path).exists())
    return {setting: paths for setting, paths in found.items() if paths}


def _check_sent(recipe: Recipe) -> None:
    """Raise RecipeError for a path that an ignore file excluded from a job."""
    for setting, _, place in places(recipe):
        if "/" in place and "://" not in place and (file := left_out(place)) is not None:
            raise RecipeError(
                f"{setting}={place!r} is listed in {file}, so `ray job submit --working-dir` did not send it. "
                "Remove it there if it is small (a job's folder has at most 100 MB), or set a URL or a shared folder"
            )


def check_settings(recipe: Recipe) -> None:
    """Raise RecipeError if settings contradict each other. This is the part of `check_recipe` that reads no files."""
    _check_updates(recipe)
    if recipe.encoder.kind != recipe.method.encoder_kind:
        raise RecipeError(
            f"encoder: method {recipe.method.name!r} trains a {recipe.method.encoder_kind} encoder, but this is a "
            f"{recipe.encoder.kind} encoder (encoder.path is for transformers, encoder.vectors and encoder.regions for word "
            "vectors)"
        )
    _check_sizes(recipe)
    with _named():
        recipe.method.check_settings()
        recipe.method.check(recipe, None)
        recipe.evaluation.check()
    for name, stream in recipe.streams.items():
        with _named(f"streams.{name}."):
            stream.check_settings()
    for name, optim in recipe.optim.items():
        with _named(f"optim.{name}."):
            optim.check()
    layered = [f"run.{name}" for name in ("gradient_checkpointing", "compile", "sharded") if getattr(recipe.run, name)]
    layered += [f"optim.{name}.layer_decay" for name, optim in recipe.optim.items() if optim.layer_decay != 1]
    if layered and not recipe.encoder.layered:
        raise RecipeError(
            f"{layered[0]} applies to transformer layers, but method {recipe.method.name!r} trains none; remove it"
        )
    if recipe.run.matryoshka and not recipe.method.vectors():
        raise RecipeError(
            f"run.matryoshka={recipe.run.matryoshka}: the losses of method {recipe.method.name!r} are computed after a "
            "training-only head and not on the exported embeddings. Disable the head (method.head none, if the method has "
            "this setting), or remove run.matryoshka"
        )
    with _named():
        for name in recipe.run.callbacks:
            find_callback(name)
    _check_gpus(recipe)
    if recipe.run.max_failures and not recipe.run.num_workers:
        raise RecipeError(
            f"run.max_failures={recipe.run.max_failures}: with run.num_workers=0 no worker can be lost; remove it, or set "
            "run.num_workers to 1"
        )


def _check_gpus(recipe: Recipe) -> None:
    import torch

    run = recipe.run
    if run.threads and run.gpus_per_worker:
        raise RecipeError(f"run.threads={run.threads} has no effect: workers run on GPUs; remove it, or run.gpus_per_worker")
    if run.precision != "fp32" and not run.tf32:
        raise RecipeError(f"run.tf32=False has no effect: run.precision is {run.precision!r}; remove it, or set fp32")
    if run.sharded and run.num_workers < 2:
        raise RecipeError(
            f"run.sharded=True shards layers across workers, but run.num_workers={run.num_workers}; set it to 2 or more"
        )
    if run.num_workers > 1 and run.gpus_per_worker % 1:
        raise RecipeError(
            f"run.gpus_per_worker={run.gpus_per_worker:g} with run.num_workers={run.num_workers}: workers of one run cannot "
            "share a GPU (NCCL refuses it); set run.gpus_per_worker to 1 with one worker per GPU, or run.num_workers to 1"
        )
    others = {"run.ema": run.ema is not None, "run.compile": run.compile, "run.precision='fp16'": run.precision == "fp16"}
    others["an SGD optimizer"] = any(isinstance(config, SGDConfig) for config in recipe.optim.values())
    for name in (name for name, given in others.items() if given and run.sharded):
        raise RecipeError(
            f"run.sharded=True is not supported with {name}; remove one of them (bf16 and AdamW are supported)"
        )
    if run.precision == "fp16" and not run.gpus_per_worker:
        raise RecipeError(
            "run.precision='fp16' needs a GPU (CPUs do not support loss scaling, without which small gradients are lost); "
            "use fp32 or bf16, or set run.gpus_per_worker"
        )
    if run.num_workers > 1 and not run.gpus_per_worker and recipe.method.batch_norm:
        raise RecipeError(
            f"run.num_workers={run.num_workers} on CPUs: the method has BatchNorm, whose statistics are shared between "
            "workers on GPUs only; set run.num_workers to 1, or run.gpus_per_worker to 1"
        )
    here = torch.cuda.device_count()  # creates no CUDA context
    if not run.num_workers and run.gpus_per_worker > here:
        raise RecipeError(
            f"run.gpus_per_worker={run.gpus_per_worker:g} with run.num_workers=0: everything runs in this process, "
            f"which has {here} GPUs; set it to 0, or run.num_workers to 1"
        )


@contextlib.contextmanager
def _named(prefix: str = "") -> Iterator[None]:
    """Convert errors to RecipeError (DataError stays), with the prefix of the setting at their start."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{prefix}{error}") from error
    except ValueError as error:
        raise RecipeError(f"{prefix}{error}") from None


def _check_updates(recipe: Recipe) -> None:
    updates = recipe.method.updates()
    wanted = {stream for streams in updates.values() for stream in streams}
    if missing := wanted - set(recipe.streams):
        raise RecipeError(
            f"method {recipe.method.name!r} needs the stream {sorted(missing)[0]!r}; streams has {sorted(recipe.streams)}. "
            f"Add streams.{sorted(missing)[0]}."
        )
    if spare := set(recipe.streams) - wanted:
        raise RecipeError(
            f"streams.{sorted(spare)[0]} is not read by {recipe.method.name!r}, which reads {sorted(wanted)}; remove it"
        )
    if absent := set(updates) - set(recipe.optim):
        raise RecipeError(
            f"optim has {sorted(recipe.optim)}; the method needs {list(updates)}: add optim.{sorted(absent)[0]}"
        )
    if unused := set(recipe.optim) - set(updates):
        raise RecipeError(f"optim.{sorted(unused)[0]} is not used: the method needs {list(updates)}; remove it")
    groups = recipe.method.parameter_groups
    for update, optim in recipe.optim.items():
        if unknown := [name for name in optim.groups if name not in groups]:
            raise RecipeError(
                f"optim.{update}.groups: method {recipe.method.name!r} has no parameter group {unknown[0]!r}; it has "
                f"{', '.join(groups)}"
            )
    if recipe.lead not in recipe.streams:
        raise RecipeError(f"lead={recipe.lead!r} is not a stream; allowed: {sorted(recipe.streams)}")


def _check_sizes(recipe: Recipe) -> None:
    workers = max(1, recipe.run.num_workers)
    for name, stream in recipe.streams.items():
        if stream.batch_size < recipe.method.smallest_batch:
            raise RecipeError(f"streams.{name}.batch_size={stream.batch_size} leaves no negatives; use at least 2")
        if stream.batch_size % workers:
            near = stream.batch_size // workers * workers or workers
            raise RecipeError(
                f"streams.{name}.batch_size={stream.batch_size} is not divisible by run.num_workers={workers}; "
                f"use {near} or {near + workers}"
            )


def _check_lengths(recipe: Recipe, encoder: Any) -> None:
    longest, beside = (getattr(encoder, name, 0) for name in ("longest_text", "tokens_beside"))
    for name, stream in recipe.streams.items() if longest else ():
        length: int = getattr(stream, "max_length", longest)
        if length > longest:
            raise RecipeError(
                f"streams.{name}.max_length={length} exceeds the {longest} tokens that encoder.path supports "
                f"(its positions or max_seq_length); set it to at most {longest}"
            )
        if length <= beside:
            raise RecipeError(
                f"streams.{name}.max_length={length}: special tokens and the prompt of encoder.path take {beside} tokens, "
                f"so none is left for the sentence; set it to more than {beside}"
            )


def _warn_of_small_shares(recipe: Recipe) -> None:
    workers = recipe.run.num_workers
    for name, stream in recipe.streams.items():
        share = stream.batch_size // max(1, workers)
        if workers > 1 and share < SHARE and recipe.method.smallest_batch > 1:
            log.warning(
                "streams.%s.batch_size=%d with run.num_workers=%d is %d samples per worker: most of the time is spent on "
                "exchanging embeddings and gradients. Set it to at least %d, or use fewer workers",
                *(name, stream.batch_size, workers, share, SHARE * workers),
            )


def check_tasks(recipe: Recipe) -> None:
    """Raise RecipeError for a task that does not exist or has no data, or a test set that would select a checkpoint."""
    evaluation = recipe.evaluation
    development = [*([evaluation.select] if evaluation.select else []), *evaluation.watch]
    for name in development:
        if (name in known() or ":" in name) and not is_development(name):
            raise RecipeError(
                f"evaluation.select/watch: {name!r} is a test set or a task that trains on labels and must not be used to "
                f"select a checkpoint; use {', '.join(DEVELOPMENT)} or pairs:FILE of a development set, and list test "
                "sets in evaluation.final"
            )
    try:
        make_tasks([*development, *evaluation.final], evaluation.data)
    except EvaluationError as error:
        raise RecipeError(
            f"evaluation: {error} (in a recipe: evaluation.data, and the task names in evaluation.select, watch and final)"
        ) from None


def _check_export(recipe: Recipe) -> None:
    if recipe.export != ExportConfig():
        if not recipe.encoder.layered or not any(s.texts for s in recipe.streams.values()):
            raise RecipeError(
                "export.whiten: only transformer text models that are trained on sentences are supported; remove it"
            )
        width = getattr(recipe.encoder.read(), "hidden_size", None)
        if recipe.export.dimensions and width and recipe.export.dimensions > width:
            raise RecipeError(
                f"export.dimensions={recipe.export.dimensions}: the encoder has {width}; set it to at most {width}"
            )
    with _named():
        if (name := recipe.run.register_as) is not None and (not name.strip() or {*"/:"} & {*name}):
            raise ValueError(f"run.register_as={name!r}: MLflow allows names of models without / and :, and no empty ones")
        if recipe.run.push_to_hub is not None:
            from multicse.trainers.engine.export import check_hub  # takes seconds

            check_hub(recipe.run.push_to_hub, "run.push_to_hub")


def _check_reachable(recipe: Recipe) -> None:
    run = recipe.run
    for name, stream in recipe.streams.items():
        if any(is_hub_name(place) for place in stream.shards.split("::")):
            raise RecipeError(
                f"streams.{name}.shards={stream.shards!r} is cached on one node only; list its files "
                "(hf://datasets/OWNER/NAME/data/train-*.parquet), or pack it and upload the shards"
            )
    if recipe.encoder.prepare_cache_key() is not None:
        raise RecipeError(
            "encoder: the files that the run would prepare for it are written to run.output_dir, which other nodes cannot "
            "read; set a file that every node has (encoder.vectors; a run on one machine writes OUTPUT/vectors)"
        )
    if run.storage is None or not urlparse(run.storage).scheme:
        raise RecipeError(
            f"run.storage={run.storage!r} cannot be reached from several nodes; set it, or MULTICSE_STORAGE in the job's "
            "environment (docs/how-to/cluster.md), to a URL that all nodes can reach: s3://bucket/runs, or for a shared "
            "folder file:///FOLDER"
        )
    tracking = run.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    if run.report_to == "mlflow" and (tracking.startswith(("sqlite:", "file:")) or not urlparse(tracking).scheme):
        raise RecipeError(
            f"run.tracking_uri={tracking!r} is a file on one node; start an MLflow server and set run.tracking_uri, or "
            "MLFLOW_TRACKING_URI in the job's environment (docs/how-to/cluster.md), to its http:// URI"
        )


def find_callback(name: str) -> Callback:
    """Return a callback: ``package.module:NAME``, or ``FILE.py:NAME`` for a user's file.

    It is a function, or a class without arguments, which a run instantiates. A callback with `state_dict` and
    `load_state_dict` has a state, which checkpoints contain. Workers get the text of such a file from the driver
    (`plugins.loaded`).

    Raises:
        ValueError: If it cannot be imported, or has only one of the two methods.
    """
    place, _, attribute = name.rpartition(":")
    try:
        module = own_module(place) if place.endswith(".py") else importlib.import_module(place)
        found: Callback = getattr(module, attribute)
    except (ImportError, AttributeError, OSError, ValueError) as error:
        raise ValueError(f"run.callbacks: {name!r} not found ({error}); use package.module:NAME or FILE.py:NAME") from None
    except Exception as error:  # of the user's code, for example a SyntaxError
        raise ValueError(
            f"run.callbacks: {name!r} cannot be imported ({type(error).__name__}: {error}); correct it"
        ) from None
    try:
        with contextlib.suppress(ValueError):  # some functions in C have no signature
            inspect.signature(found).bind(*([] if isinstance(found, type) else ["step", "metrics", "engine"]))
    except TypeError as error:
        raise ValueError(
            f"run.callbacks: {name!r} cannot be called ({error}); a function takes step, metrics and engine, a class nothing"
        ) from None
    if hasattr(found, "state_dict") != hasattr(found, "load_state_dict"):
        raise ValueError(f"run.callbacks: {name!r} has only one of state_dict and load_state_dict; define both or neither")
    return found


def describe_known_shards_of(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the same as `describe_shards_of`, and only the names if the shards were moved or deleted after the run."""
    try:
        return describe_shards_of(recipe)
    except (ValueError, OSError):
        return [{"stream": name, "name": name, "source": Path(one.shards).name} for name, one in recipe.streams.items()]


def describe_shards_of(recipe: Recipe) -> list[dict[str, Any]]:
    """Return name, place, size, digest, licence, source and languages of each stream, for model cards and trackers."""
    opened = {name: recipe.shards(name) for name in recipe.streams}
    return [
        {"stream": name, "name": shards.name or name, "place": redacted(recipe.streams[name].shards)}
        | {fact: getattr(shards, fact) for fact in ("samples", "digest", "licence", "source", "languages")}
        for name, shards in opened.items()
    ]
