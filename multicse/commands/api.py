"""Python API: `load_recipe`, `train`, `evaluate` and `pack`, which users import from `multicse`.

`multicse.sweep` is in `multicse.commands.sweep`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from multicse.commands import announce_imports
from multicse.commands.registry import from_file, load, named, split
from multicse.data.errors import DataError, did_you_mean
from multicse.data.offline import OFFLINE
from multicse.trainers.recipe import Recipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from multicse.data.shards import Manifest
    from multicse.evaluation.task import Encoder

os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")  # error messages without links to pydantic's documentation

Metrics = dict[str, dict[str, float]]
"""Metrics by task: ``{"lee": {"spearman": 49.2, ...}, ...}``; correlations and accuracies are in points (100 = perfect)."""
SOURCES = ("files", "file", "path")
"""Options of `pipelines/pack.py` that name the source."""


def load_recipe(name: str | Path, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe and change some of its settings.

    Args:
        name: ``PIPELINE/RECIPE`` (``visualcse/demo``), a pipeline alone for its demo, a Python file with `RECIPES`
            (``my_method.py/demo``), or a ``recipe.json`` that a run wrote.
        changes: Values of settings by dotted name, as on the command line: ``{"optim.text.lr": 3e-4}``.

    Returns:
        The recipe, frozen. `Recipe.changed` returns a copy with further changes.

    Raises:
        RecipeError: If the pipeline, recipe, file or setting does not exist, or a value is not allowed. The message names
            the nearest known name.

    Examples:
        >>> recipe = multicse.load_recipe("visualcse/demo", {"optim.text.lr": 3e-4, "run.seed": 2})
        >>> recipe.name, recipe.optim["text"].lr, recipe.run.seed
        ('visualcse/demo', 0.0003, 2)
    """
    if str(name).endswith(".json"):
        return from_file(Path(name)).changed(changes or {})
    pipeline, recipe = split(str(name))
    return named(load(pipeline).RECIPES, recipe).changed(changes or {})


def write_inputs(recipe: Recipe) -> Recipe:
    """Write the inputs that a recipe generates, and return the recipe that reads them.

    These are the offline shards of streams and tasks, and the new encoder of a recipe for pretraining.
    """
    from multicse.data.offline.demo import kinds_of, write_demo_shards

    evaluation = recipe.evaluation
    tasks = (evaluation.select or "", *evaluation.watch, *evaluation.final)
    if kinds := kinds_of([*(stream.shards for stream in recipe.streams.values()), *tasks], OFFLINE):
        write_demo_shards(Path(OFFLINE), kinds)
    start = recipe.method.make_start(recipe)
    return recipe.replace("encoder.path", start) if start else recipe


@dataclass(frozen=True)
class TrainingResult:
    """The result of a finished run."""

    scores: Metrics
    """Metrics of the final tasks with the exported weights."""
    before: Metrics
    """Metrics of the same tasks before training."""
    export: Path
    """Folder of the exported sentence-transformers model."""
    run_id: str | None
    """ID of the MLflow run, on the server ``summary["tracking_uri"]``; None with ``run.report_to=none``."""
    summary: dict[str, Any]
    """Content of ``summary.json`` in the output folder."""

    def load(self, **options: Any) -> SentenceTransformer:
        """Return the exported model.

        Args:
            options: Further arguments of `SentenceTransformer`, such as ``device="cpu"``.
        """
        from sentence_transformers import SentenceTransformer

        from multicse.models.hub_folders import carried_files

        trust = {"trust_remote_code": True} if carried_files(self.export) else {}  # the export contains code of this project
        return SentenceTransformer(str(self.export), **(trust | options))


def train(recipe: Recipe | str | Path, output_dir: str | Path | None = None) -> TrainingResult:
    """Train a recipe, evaluate the model before and after training, and export it.

    An interrupted run of the same recipe in the same folder resumes from its last checkpoint. The result of a finished run
    is returned without training again.

    Args:
        recipe: Recipe, or a name or file as for `load_recipe`.
        output_dir: Folder of the run. Default: `run.output_dir` of the recipe.

    Returns:
        Scores, folder of the exported model and ID of the MLflow run.

    Raises:
        RecipeError: If a setting is invalid; raised before training starts. The message names setting, value and remedy.
        DataError: If shards or files are missing or damaged.
        NonFiniteLoss: If a loss or gradient becomes infinite or not a number.
        Interrupted: After Ctrl-C or SIGTERM, once the checkpoint of the current step is written.

    Examples:
        >>> recipe = multicse.load_recipe("simcse/smoke", {"run.num_workers": 0})  # in this process, without Ray
        >>> result = multicse.train(recipe, output_dir="runs/api")
        step 2/8  text ...  0 s left
        >>> sorted(result.scores), result.export.name
        (['lee', 'lee-all'], 'export')
        >>> result.load(device="cpu").encode(["A first sentence."]).shape
        (1, 192)
    """
    announce_imports()
    from multicse.trainers.engine.launch import run_recipe

    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    if output_dir is not None:
        recipe = recipe.replace("run.output_dir", str(output_dir))
    found = run_recipe(write_inputs(recipe))
    scores, before = found["after"] or {}, found["before"] or {}
    return TrainingResult(scores, before, Path(found["export"]), found["mlflow_run_id"], found)


def evaluate(
    model: str | Path | SentenceTransformer | Encoder,
    tasks: Sequence[str] = (),
    data: str | Path | None = None,
    *,
    pooling: str | None = None,
    device: str | None = None,
    batch_size: int = 128,
    seed: int = 1111,
) -> Metrics:
    """Evaluate a sentence encoder.

    Args:
        model: Folder, Hugging Face model ID or word-vector file, optionally followed by ``@POOLING`` and ``+whitening``; or
            a `SentenceTransformer`; or an object with a method ``encode(items, modality)`` that returns an array (N, d).
        tasks: Names of tasks and groups: ``lee``, ``sts``, ``pairs:dev.tsv``, ... Default: all STS tasks found in `data`.
        data: SentEval `downstream` folder, or a folder of raw TSVs. Default: the Lee corpus.
        pooling: Pooling to use instead of the model's own; only for a folder, ID or file.
        device: Device, only for a folder, ID or file. Default: the GPU if one is available.
        batch_size: Batch size in texts of 32 tokens.
        seed: Random seed of classifiers and fitted post-processing.

    Returns:
        Metrics by task; correlations and accuracies are in points.

    Raises:
        EvaluationError: If the model, a task or its data does not exist, or embeddings are not finite.

    Examples:
        >>> multicse.evaluate(result.export, ["lee"]).keys()
        dict_keys(['lee'])
        >>> whitened = multicse.evaluate(f"{result.export}+whitening8", ["lee", "lee-geometry"])
        >>> sorted(whitened["lee-geometry"])[:2]
        ['alignment', 'dimension_std']
    """
    from sentence_transformers import SentenceTransformer

    from multicse.evaluation import registry, report, task
    from multicse.evaluation.encoders.encoder import FolderEncoder
    from multicse.evaluation.load import load_for
    from multicse.trainers.engine.cluster import quiet
    from multicse.trainers.engine.text_fit import text_of_run

    quiet()
    chosen = registry.choose(tasks, data, seed)
    encoder: Encoder
    if isinstance(model, (str, Path)):
        encoder = load_for(
            chosen, str(model), text_of=text_of_run, pooling=pooling, device=device, batch_size=batch_size, seed=seed
        )
    elif pooling is not None:
        raise task.EvaluationError(f"pooling={pooling!r} is only for a folder, model ID or file; leave it out")
    else:
        loaded = isinstance(model, SentenceTransformer)
        encoder = FolderEncoder(model, Path(), "own", batch_size) if loaded else model
    return dict(report.evaluate(chosen, encoder))


def pack(
    kind: Literal["text", "table", "images", "audio"],
    source: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    licence: str = "unknown",
    overwrite: bool = False,
    workers: int = 1,
    **options: Any,
) -> Manifest:
    """Pack texts, a table, images or audio files into shards that streams read.

    Args:
        kind: ``text`` for files with one sentence per line, ``table`` for columns of a table, ``images`` or ``audio`` for a
            folder of class folders or a table that names files.
        source: Folder, or file or URL of a table; for ``text`` one or several files.
        out: Folder of the shards.
        licence: Licence of the data, for the model cards of models trained on it.
        overwrite: Replace existing shards in the folder.
        workers: Number of processes that read and write.
        options: Further options of ``pipelines/pack.py KIND`` by name, such as ``columns=("sent0", "sent1")`` for a table.

    Returns:
        Content of ``dataset.json``: folder, shards, counts, classes.

    Raises:
        DataError: If the source cannot be read, the folder contains shards already, or the kind or an option does not exist.

    Examples:
        >>> _ = Path("sentences.txt").write_text("One sentence per line.")
        >>> multicse.pack("text", "sentences.txt", "shards/text", licence="CC0-1.0").record["nsamples"]
        1
    """
    from multicse.commands import pack as verb

    kinds: dict[str, Any] = {"text": verb.Text, "table": verb.Table, "images": verb.Images, "audio": verb.Audio}
    if kind not in kinds:
        raise DataError(f"kind {kind!r} does not exist.{did_you_mean(kind, kinds)} Kinds: {', '.join(kinds)}")
    place, *known = sorted(inspect.signature(kinds[kind]).parameters, key=lambda name: name not in SOURCES)
    if wrong := next((name for name in options if name not in known), None):
        raise DataError(f"kind {kind!r} has no option {wrong!r}.{did_you_mean(wrong, known)} Options: {', '.join(known)}")
    several = [source] if isinstance(source, (str, Path)) else source
    given = tuple(map(Path, several)) if kind == "text" else str(source)
    common = {place: given, "out": Path(out), "licence": licence, "overwrite": overwrite, "workers": workers}
    hints = get_type_hints(kinds[kind])
    for name, value in options.items():
        one_text = isinstance(value, str) and get_origin(hints[name]) is tuple
        try:
            options[name] = TypeAdapter(hints[name]).validate_python((value,) if one_text else value)
        except ValidationError as error:
            raise DataError(f"{name}={value!r}: {error.errors()[0]['msg']}") from None
    manifest: Manifest = kinds[kind](**common, **options).run()
    return manifest
