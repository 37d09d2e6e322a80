"""The Python API: `load_recipe`, `train`, `evaluate` and `pack`; `sweep` is in `multicse.pipelines.sweep`.

The functions are imported from `multicse`, which loads this module when the first one is used.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from multicse.data.errors import DataError, did_you_mean
from multicse.data.offline import OFFLINE
from multicse.pipelines.registry import from_file, load, named, split
from multicse.trainers.recipe import Recipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from multicse.data.shards import Manifest
    from multicse.evaluation.task import Encoder

os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")  # messages name the setting, and no page of pydantic

Metrics = dict[str, dict[str, float]]
"""Metrics by task: ``{"lee": {"spearman": 49.2, ...}, ...}``; correlations and accuracies are in points (100 = perfect)."""
SOURCES = ("files", "file", "path")
"""Options of `pipelines/pack.py` that name what is packed."""


def load_recipe(name: str | Path, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return a recipe, with some of its settings changed.

    Args:
        name: ``PIPELINE/RECIPE`` (``visualcse/demo``), a pipeline alone for its demo, a Python file with `RECIPES`
            (``my_method.py/demo``), or a ``recipe.json`` that a run wrote.
        changes: Values of settings by dotted name, as on the command line: ``{"optim.text.lr": 3e-4}``.

    Returns:
        The recipe, frozen. `Recipe.changed` returns a copy with further changes.

    Raises:
        RecipeError: If there is no such pipeline, recipe or setting, or a value is not allowed. The message names the
            nearest known name.

    Examples:
        >>> recipe = multicse.load_recipe("visualcse/demo", {"optim.text.lr": 3e-4, "run.seed": 2})
        >>> recipe.name, recipe.optim["text"].lr, recipe.run.seed
        ('visualcse/demo', 0.0003, 2)
    """
    if str(name).endswith(".json"):
        return from_file(Path(name)).changed(changes or {})
    pipeline, recipe = split(str(name))
    return named(load(pipeline).RECIPES, recipe).changed(changes or {})


def prepare(recipe: Recipe) -> Recipe:
    """Make the input that a recipe does not find but makes itself, and return the recipe that reads it.

    These are the offline shards of its streams and tasks, and the new encoder of a recipe that pretrains one.
    """
    from multicse.data.offline.demo import kinds_of, write_demo_shards

    evaluation = recipe.evaluation
    tasks = (evaluation.select or "", *evaluation.watch, *evaluation.final)
    if kinds := kinds_of([*(stream.shards for stream in recipe.streams.values()), *tasks], OFFLINE):
        write_demo_shards(Path(OFFLINE), kinds)
    return recipe.method.make_start(recipe)


@dataclass(frozen=True)
class TrainingResult:
    """The result of a finished run."""

    scores: Metrics
    """Metrics of the final tasks with the exported weights."""
    before: Metrics
    """Metrics of the same tasks before training."""
    export: Path
    """Folder of the exported sentence-transformers model."""
    run_id: str
    """ID of the MLflow run, on the server ``summary["tracking_uri"]``."""
    summary: dict[str, Any]
    """Content of ``summary.json`` in the output folder."""

    def load(self, **options: Any) -> SentenceTransformer:
        """Return the exported model.

        Args:
            options: Further arguments of `SentenceTransformer`, such as ``device="cpu"``.
        """
        from sentence_transformers import SentenceTransformer

        from multicse.models.hub_folders import carried_files

        trust = {"trust_remote_code": True} if carried_files(self.export) else {}  # code of ours, in the export
        return SentenceTransformer(str(self.export), **(trust | options))


def train(recipe: Recipe | str | Path, output_dir: str | Path | None = None) -> TrainingResult:
    """Train a recipe, evaluate it before and after, and export the model.

    An interrupted run of the same recipe in the same folder resumes from its last checkpoint. A finished one is not
    repeated: its result is returned.

    Args:
        recipe: Recipe, or a name or file as for `load_recipe`.
        output_dir: Folder of the run. Default: the recipe's `run.output_dir`.

    Returns:
        Scores, exported model and MLflow run.

    Raises:
        RecipeError: If the recipe cannot run, before anything is started. The message names setting, value and remedy.
        DataError: If shards or files are missing or damaged.
        NonFiniteLoss: If a loss or gradient becomes infinite or not a number.
        Interrupted: After Ctrl-C or SIGTERM, when the checkpoint of the current step is written.

    Examples:
        >>> recipe = multicse.load_recipe("simcse/smoke", {"run.num_workers": 0})  # in this process, without Ray
        >>> result = multicse.train(recipe, output_dir="runs/api")
        step 2/8  text ...  0 s left
        >>> sorted(result.scores), result.export.name
        (['lee', 'lee-all'], 'export')
        >>> result.load(device="cpu").encode(["A first sentence."]).shape
        (1, 192)
    """
    from multicse.trainers.engine.launch import fit

    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    if output_dir is not None:
        recipe = recipe.replace("run.output_dir", str(output_dir))
    found = fit(prepare(recipe))
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
        model: Folder, model ID on the Hugging Face Hub, word-vector file, each with ``@POOLING`` and ``+whitening`` after it
            if wanted; or a `SentenceTransformer`, or an object with ``encode(items, modality)`` that returns (N, d).
        tasks: Names of tasks and groups: ``lee``, ``sts``, ``pairs:dev.tsv``, ... Default: every STS set found.
        data: SentEval `downstream` folder, or a folder of raw TSVs. Without it the Lee corpus is available.
        pooling: Pooling in place of the model's own; only for a folder, ID or file.
        device: Device of a model that is loaded. Default: the GPU if there is one.
        batch_size: Texts of 32 tokens in a batch.
        seed: Seed of classifiers and fitted post-processing.

    Returns:
        Metrics by task; correlations and accuracies are in points.

    Raises:
        EvaluationError: If there is no such model, task or data, or the embeddings are not finite.

    Examples:
        >>> multicse.evaluate(result.export, ["lee"]).keys()
        dict_keys(['lee'])
        >>> whitened = multicse.evaluate(f"{result.export}+whitening", ["lee", "lee-geometry"])
        >>> sorted(whitened["lee-geometry"])[:2]
        ['alignment', 'dimension_std']
    """
    from sentence_transformers import SentenceTransformer

    from multicse.evaluation import registry, task
    from multicse.evaluation.encoders.encoder import FolderEncoder
    from multicse.evaluation.load import load_for
    from multicse.trainers.engine.cluster import quiet

    quiet()
    chosen = registry.choose(tasks, data, task.Probing(seed=seed))
    encoder: Encoder
    if isinstance(model, (str, Path)):
        encoder = load_for(chosen, str(model), pooling=pooling, device=device, batch_size=batch_size, seed=seed)
    elif pooling is not None:
        raise task.EvaluationError(f"pooling={pooling!r} is for a model that is loaded; this one has its own")
    else:
        loaded = isinstance(model, SentenceTransformer)
        encoder = FolderEncoder(model, Path(), "own", batch_size) if loaded else model
    return task.evaluate(chosen, encoder)


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
        source: File, folder, pattern or URL; several files for ``text``.
        out: Folder of the shards.
        licence: Licence of the data, for the cards of models that are trained on it.
        overwrite: Replace the shards that are in the folder.
        workers: Processes that read and write.
        options: Further options of ``pipelines/pack.py KIND`` by name, such as ``columns=("sent0", "sent1")`` for a table.

    Returns:
        The content of ``dataset.json``: folder, shards, counts, classes.

    Raises:
        DataError: If the source cannot be read, the folder has shards already, or there is no such kind or option.

    Examples:
        >>> _ = Path("sentences.txt").write_text("A first sentence.\\nA second sentence.\\n")
        >>> multicse.pack("text", "sentences.txt", "shards/text", licence="CC0-1.0").record["nsamples"]
        2
    """
    from multicse.pipelines import pack as verb

    kinds: dict[str, Any] = {"text": verb.Text, "table": verb.Table, "images": verb.Images, "audio": verb.Audio}
    if kind not in kinds:
        raise DataError(f"kind {kind!r}.{did_you_mean(kind, kinds)} It is one of {', '.join(kinds)}")
    place, *known = sorted(inspect.signature(kinds[kind]).parameters, key=lambda name: name not in SOURCES)
    if wrong := next((name for name in options if name not in known), None):
        raise DataError(f"kind {kind!r} has no option {wrong!r}.{did_you_mean(wrong, known)} It has {', '.join(known)}")
    several = [source] if isinstance(source, (str, Path)) else source
    given = tuple(map(Path, several)) if kind == "text" else str(source)
    common = {place: given, "out": Path(out), "licence": licence, "overwrite": overwrite, "workers": workers}
    manifest: Manifest = kinds[kind](**common, **options).run()
    return manifest
