"""Register the encoders, tasks and figures of this package in the product; `multicse.plugins` imports this module."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from multicse import plugins
from multicse.evaluation import registry, report
from multicse.evaluation.encoders.baselines import LayerPooling
from multicse.evaluation.load import Model
from multicse.evaluation.registry import Family, Kind, Options, Pairs
from multicse.evaluation.tables import TRANSFER
from multicse.evaluation.task import Encoded, EvaluationError, Probing, Task
from multicse.evaluation.tasks.classification import read_labelled
from multicse.evaluation.tasks.geometry import PairedGeometryTask
from multicse.evaluation.tasks.sts import PairTask
from multicse.reproduction.encoders import poolings
from multicse.reproduction.encoders.flow import Flowed
from multicse.reproduction.tasks import finetune, probe, transfer
from multicse.reproduction.tasks.measures import ClassGeometryTask, ReleasedRetrievalTask
from multicse.reproduction.tasks.relatedness import RelatednessTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REGRESSION = {  # training, development and test pairs of SentEval's regression
    "stsb-regression": ("stsb-train", "stsb-dev", "stsb-test"),
    "sickr-regression": ("sickr-train", "sickr-dev", "sickr"),
}


# --------------------------------------------------------------------------------------------------------------- encoders


def _flow(model: Model, fit: Sequence[str], size: int | None, source: str, seed: int) -> Model:
    return Flowed(model, fit, seed=seed, source=source)


plugins.add("post", "flow", _flow)
plugins.add("pooling", poolings.PATTERN, LayerPooling(poolings.make, ("wk", "wk-released")))
plugins.add("word pooling", "padded", poolings.PaddedWordVectors)


# ------------------------------------------------------------------------------------------------------------------ tasks


def _regressions(folder: Path, layout: str, pairs: Sequence[str]) -> list[str]:
    return [name for name, parts in REGRESSION.items() if all(part in pairs for part in parts)]


def _regression(name: str, data: str | Path | None, pairs: Pairs, probing: Probing) -> Task:
    train, dev, test = (pairs(part).pairs for part in REGRESSION[name])
    return RelatednessTask(name, train, dev, test, seed=probing.seed, hidden=probing.hidden)


def _transfers(folder: Path, layout: str, pairs: Sequence[str]) -> list[str]:
    return transfer.available(folder) if layout == "senteval" else []


def _transfer(name: str, data: str | Path | None, pairs: Pairs, probing: Probing) -> Task:
    return transfer.make(name, registry.located(name, data)[0], probe.protocol_of(probing))


def _finetune(title: str, place: str, options: Options, probing: Probing) -> Task:
    head, schedule = options.pop("head", "linear"), options.pop("schedule", "linear")
    accumulate = registry.switch(title, options, "accumulate")
    options.pop("accumulate", None)
    kinds = dict.fromkeys(("lr", "weight_decay", "warmup", "clip"), float)
    numbers = {name: registry.number(name, value, kinds.get(name, int)) for name, value in options.items()}
    settings = finetune.Training(**numbers, schedule=schedule, accumulate=accumulate, seed=probing.seed)  # type: ignore[arg-type]  # by `number`
    return finetune.FinetuneTask(title, read_labelled(place, probing.seed), settings, head)


def _retrieval(title: str, place: str, options: Options, probing: Probing) -> Task:
    if not registry.switch(title, options, "released"):
        options.pop("released", None)
        return _plain_retrieval.make(title, place, options, probing)
    if registry.switch(title, options, "shared"):
        raise EvaluationError(
            f"task {title}: released=true counts each caption and excludes shared=true; remove shared=true"
        )
    return ReleasedRetrievalTask(f"{title}-released", place, options.get("primary", "mean_r1"))


def _geometry(title: str, place: str, options: Options, probing: Probing) -> Task:
    if not place.removesuffix(".gz").endswith(".tsv"):
        return PairedGeometryTask(title, place)
    return ClassGeometryTask(title, read_labelled(place, probing.seed))


plugins.add("family", "regression", Family(tuple(REGRESSION), _regressions, _regression))
_folders = tuple(place for place, _ in transfer.SETS.values())
plugins.add("family", "transfer", Family(TRANSFER, _transfers, _transfer, _folders))
plugins.add("group", "transfer", TRANSFER)
_finetune_kind = Kind(
    "the same texts: the encoder itself is trained",
    _finetune,
    ("head", "epochs", "lr", "batch", "weight_decay", "warmup", "schedule", "clip", "max_length", "accumulate"),
    trains=True,
)
plugins.add("task", "finetune", _finetune_kind)
_plain_retrieval: Kind = plugins.get("task", "retrieval")
_options = (*_plain_retrieval.options, "released")
plugins.add("task", "retrieval", _plain_retrieval._replace(make=_retrieval, options=_options))
plugins.add("task", "geometry", Kind("a labelled TSV, or shards with captions", _geometry))
_prompts = tomllib.loads((Path(__file__).parent / "tables" / "clip.toml").read_text(encoding="utf-8"))["prompts"]
plugins.add("templates", "clap29", tuple(_prompts))
plugins.add("head", "senteval", probe.senteval)
plugins.add("head", "three-layers", probe.three_layers_probe)


# ---------------------------------------------------------------------------------------------------------------- figures


def _drawings(encoded: Encoded, tasks: Sequence[Task], seed: int) -> Iterator[report.Drawing]:
    """Yield t-SNE figures of STS tasks (SG-BERT, Figure 5)."""
    from multicse.reproduction.figures import extreme_pairs  # imports Matplotlib

    for task in tasks:
        if isinstance(task, PairTask):
            yield f"tsne_{task.name}", partial(extreme_pairs, encoded, task, seed)


def _scatters(task: Task, runs: report.Runs) -> Iterator[tuple[str, Figure]]:
    """Yield plots of alignment, and of item uniformity, against text uniformity (Zhao et al. 2023, Figures 2 and 3)."""
    from multicse.reproduction.figures import scatter

    if isinstance(task, PairedGeometryTask):
        models = {label: [run[task.name] for run in found] for label, found in runs.items()}
        of_items = next(name for name in ("image_uniformity", "audio_uniformity") if name in next(iter(models.values()))[0])
        for name, metric in (("alignment", "alignment"), ("uniformity", of_items)):
            places = {label: [(run["text_uniformity"], run[metric]) for run in found] for label, found in models.items()}
            yield f"{name}_{task.name}", scatter(places, "text_uniformity", metric)


def _layers(model: str, tasks: list[Task], device: str | None, batch_size: int) -> report.Outcome:
    from multicse.reproduction.encoders.layers import layer_outcome

    return layer_outcome(model, tasks, device, batch_size)


plugins.add("figure", "tsne", _drawings)
plugins.add("scatter", "geometry", _scatters)
plugins.add("layers", "", _layers)
