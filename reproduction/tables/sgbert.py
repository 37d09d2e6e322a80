"""What the tables of sgbert.toml are measured by."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

from multicse.evaluation.load import load_model, parse
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.tasks.sts import PairTask
from multicse.reproduction.encoders.layers import layer_scores
from multicse.reproduction.tables.table import Table, read_tables, small_recipe

STSB = "shards/stsb-sentences"


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


def extremes(model: str, table: Table, data: Path) -> dict[str, float]:
    """Mean cosine x 100 of the pairs of STS-B's development part that are rated 5, and of those rated 0."""
    task = _pairs("stsb-dev", data)
    cosines = 100 * task.similarities(load_model(model))
    return {"rated 5": float(cosines[task.gold == 5].mean()), "rated 0": float(cosines[task.gold == 0].mean())}


def _pairs(name: str, data: Path) -> PairTask:
    (task,) = make_tasks([name], data)
    assert isinstance(task, PairTask)
    return task


FILE = Path(__file__).with_suffix(".toml")
TABLES = read_tables(FILE, globals())
mini = partial(small_recipe, FILE)
"""The row on the small encoder of 2 layers: 100 steps of 16 sentences, chosen on STS-B's development part."""
