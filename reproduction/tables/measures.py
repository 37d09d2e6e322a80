"""Columns of tables that are no task's metrics: (model, table, folder of evaluation data) -> a value for each column."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from multicse.evaluation.load import load_model, parse
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.tasks.sts import PairTask
from multicse.reproduction.encoders.layers import layer_scores
from multicse.trainers.engine.tracking import histories
from multicse.trainers.recipe import Recipe

if TYPE_CHECKING:
    from multicse.reproduction.tables.table import Table

EPOCHS = 20
"""Of GCLSR's runs."""


def chosen_on(model: str, table: Table, data: Path) -> dict[str, float]:
    """Spearman on the pairs on which the run chose its checkpoint; `model` is the run's export."""
    recipe = Recipe.from_json((Path(model).parent / "recipe.json").read_text(encoding="utf-8"))
    assert recipe.evaluation.select is not None
    (task,) = make_tasks([recipe.evaluation.select], data)
    return {table.columns[0]: task.score(load_model(model)).metrics["spearman"]}


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


def curve(model: str, table: Table, data: Path) -> dict[str, float]:
    """Spearman on STS-B dev after each epoch, from the journal of the run that made the model."""
    history = histories(Path(model).parent / "journal.jsonl")["stsb-dev"]
    last = history[-1][0]
    return {str(round(EPOCHS * step / last)): metrics["spearman"] for step, metrics in history}


def _pairs(name: str, data: Path) -> PairTask:
    (task,) = make_tasks([name], data)
    assert isinstance(task, PairTask)
    return task
