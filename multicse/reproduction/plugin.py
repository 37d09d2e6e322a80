"""Register the encoders, tasks and figures of this package in the product; `multicse.plugins` imports this module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from multicse import plugins
from multicse.evaluation import report
from multicse.evaluation.encoders.encoder import NamedPooling
from multicse.evaluation.load import Model
from multicse.evaluation.task import Encoded, Task
from multicse.evaluation.tasks.geometry import PairedGeometryTask
from multicse.evaluation.tasks.sts import PairTask
from multicse.reproduction.encoders import centred, layer_poolings, poolings
from multicse.reproduction.encoders.flow import Flowed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# --------------------------------------------------------------------------------------------------------------- encoders


def _flow(model: Model, fit: Sequence[str], size: int | None, source: str, seed: int) -> Model:
    return Flowed(model, fit, seed=seed, source=source)


def _centred(how: str, model: Model, fit: Sequence[str], size: int | None, source: str, seed: int) -> Model:
    return centred.Centred(model, fit, how, source=source)


plugins.add("post", "flow", _flow)
for _how in centred.HOWS:
    plugins.add("post", _how, partial(_centred, _how))
plugins.add("pooling", "first1-last", NamedPooling(layer_poolings.first1_last, ("first1-last",)))
plugins.add("pooling", layer_poolings.DITTO, NamedPooling(layer_poolings.ditto, ("ditto",)))
plugins.add(
    "pooling",
    layer_poolings.LAYER,
    NamedPooling(layer_poolings.one_layer, ("layer1-cls", "layer1-mean", "layer1-max")),
)
plugins.add("pooling", poolings.PATTERN, NamedPooling(poolings.make, ("wk", "wk-released")))
plugins.add("module", "multicse_resnet.ResNetModule", "multicse.reproduction.resnet_module")
plugins.add("word pooling", "padded", poolings.PaddedWordVectors)


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


plugins.add("figure", "tsne", _drawings)
plugins.add("scatter", "geometry", _scatters)
