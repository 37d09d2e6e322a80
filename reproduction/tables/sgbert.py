"""What the tables of sgbert.toml are measured and drawn by, and its rows at the small scale."""

from __future__ import annotations

import json
import re
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from multicse.data.streams.eda import eda
from multicse.evaluation.figures.basic import COLOURS, legend, new_figure
from multicse.evaluation.load import fit_sentences, load_model, parse
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import encode_once
from multicse.evaluation.tasks.sts import PairTask
from multicse.pipelines import parts
from multicse.reproduction.encoders.layers import layer_scores
from multicse.reproduction.figures.curves import layer_curves
from multicse.reproduction.figures.drawings import extreme_pairs
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import Table, Values, read_tables, small_changes
from multicse.trainers.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STSB, NLI = "shards/stsb-sentences", "shards/nli-sentences"


# ------------------------------------------------------------------------------------------------- what is no task's number


def seconds(model: str, table: Table, data: Path) -> dict[str, float]:
    """Seconds of training and of encoding both sentences of all pairs of STS-B's test part.

    A trained model's training is that of its run, evaluations included, a flow's that of loading and fitting; others have 0.
    """
    start = time.perf_counter()
    encoder = load_model(model, batch_size=16)
    training = time.perf_counter() - start if parse(model).post else 0.0
    if (run := Path(model).parent / "summary.json").is_file():
        training = json.loads(run.read_text())["train_seconds"]
    task = _pairs("stsb-test", data)
    start = time.perf_counter()
    encoder.encode([*task.pairs.first, *task.pairs.second])
    return {"training": training, "inference": time.perf_counter() - start}


def layers(model: str, table: Table, data: Path) -> dict[str, float]:
    """Spearman x 100 on STS-B's test part of every layer by the model's pooling; of a trained model, its own everywhere."""
    task, spec = _pairs("stsb-test", data), parse(model)
    if spec.pooling is None:
        return dict.fromkeys(table.columns, task.score(load_model(model)).metrics["spearman"])
    curve = layer_scores(spec.place, [task])[spec.pooling]
    return {layer: curve[int(layer)][task.name]["spearman"] for layer in table.columns}


def draw_layers(table: Table, values: Values) -> Figure:
    """Figure 1: a curve for each pooling, a line for each trained model."""
    means = {label: [float(np.mean(runs)) for runs in row.values()] for label, row in values.items()}
    trained = {row.label for row in table.rows if row.recipe}
    curves = {label: curve for label, curve in means.items() if label not in trained}
    return layer_curves(curves, {label: curve[0] for label, curve in means.items() if label in trained})


def draw_domains(table: Table, values: Values) -> Figure:
    """Figure 4: STS-B and the average over the sets, a bar for each model and the sentences that it was trained on."""
    figure = new_figure()
    axes = figure.add_subplot()
    for i, (label, row) in enumerate(values.items()):
        means = {column: float(np.mean(runs)) for column, runs in row.items()}
        heights = [means["stsb-test"], float(np.mean([*means.values()]))]
        axes.bar(np.arange(2) + 0.2 * i, heights, 0.2, color=COLOURS[i], label=label)
    axes.set_xticks(np.arange(2) + 0.2 * (len(values) - 1) / 2, ["STS-B", "average"])
    axes.set(ylabel="Spearman x 100")
    legend(axes)
    return figure


def extremes(model: str, table: Table, data: Path) -> dict[str, float]:
    """Mean cosine x 100 of the pairs of STS-B's development part that are rated 5, and of those rated 0."""
    task = _pairs("stsb-dev", data)
    cosines = 100 * task.similarities(load_model(model))
    return {"rated 5": float(cosines[task.gold == 5].mean()), "rated 0": float(cosines[task.gold == 0].mean())}


def plane(model: str, data: Path) -> Figure:
    """Figures 5 and 6: 20 pairs of STS-B's development part that are rated 5 and 20 rated 0, by t-SNE."""
    task = _pairs("stsb-dev", data)
    return extreme_pairs(encode_once([task], load_model(model)), task)


def _pairs(name: str, data: Path) -> PairTask:
    (task,) = make_tasks([name], data)
    assert isinstance(task, PairTask)
    return task


FILE = Path(__file__).with_suffix(".toml")
TABLES = read_tables(FILE, globals())


# ---------------------------------------------------------------------------------------------------------- the small scale


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row on the small encoder of 2 layers: 100 steps of 16 sentences, chosen on STS-B's development part."""
    text = {"streams.text.shards": _sentences(recipe.streams["text"].shards, offline)}
    return recipe.changed(small_changes(FILE, recipe, offline) | text)


def mini_model(spec: str, offline: Offline) -> str:
    """The small encoder, with all its layers for WK and the sentences at hand for a flow."""
    how, _, sentences = re.sub("^[^@+]*", "", spec).partition(":")
    fit = f":{_sentences(sentences, offline)}" if sentences else ""
    return parts.SMALL_ENCODER + how.replace("@wk", "@wk0") + fit


@cache
def _sentences(shards: str, offline: Offline) -> str:
    """What stands in for the paper's shards: of translations, STS-B's sentences with words swapped and left out."""
    if shards == NLI:
        return offline.nli_sentences()
    if shards == STSB:
        return offline.stsb()
    rng = np.random.default_rng(0)
    sentences = fit_sentences(offline.stsb())
    pairs = [(sentence, " ".join(eda(sentence.split(), rng, lambda word: ()))) for sentence in sentences]
    return offline.table(("original", "translation"), pairs, "stsb-translated")
