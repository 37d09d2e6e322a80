"""Time and peak memory of exact retrieval in both directions, in blocks against the whole matrix of cosines, every row and
column of it sorted, as the usual script has it. Memory must not grow with the database.

    python -m benchmarks.speed.retrieval [--items 5000] [--texts 25000 100000]
"""

from __future__ import annotations

import time

import numpy as np
import tyro

from benchmarks.timer import peak_mb
from evaluation.tasks.retrieval import best_ranks, paired_ranks, recall_at

Vectors = tuple[np.ndarray, np.ndarray, np.ndarray]


def vectors(items: int, texts: int, width: int) -> Vectors:
    """Unit vectors (N, d) and (T, d) in float32, each text near its item, and the number of that item (T,)."""
    rng = np.random.default_rng(0)
    pictures = rng.standard_normal((items, width), dtype=np.float32)
    owners = np.arange(texts) * items // texts
    captions = 5 * rng.standard_normal((texts, width), dtype=np.float32)
    captions += pictures[owners]
    for rows in (pictures, captions):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    blocks(pictures[:64], captions[:8], owners[:8])  # what is set up once is not measured
    return pictures, captions, owners


def blocks(pictures: np.ndarray, captions: np.ndarray, owners: np.ndarray) -> tuple[float, float, float]:
    """Seconds, and R@1 in both directions, by evaluation/tasks/retrieval.py."""
    began = time.perf_counter()
    ranks = paired_ranks(pictures, captions, owners)
    found = recall_at(best_ranks(ranks.text, owners))[1], recall_at(ranks.item)[1]
    return time.perf_counter() - began, *found


def whole(pictures: np.ndarray, captions: np.ndarray, owners: np.ndarray) -> tuple[float, float, float]:
    """The same from all cosines at once."""
    began = time.perf_counter()
    scores = pictures @ captions.T
    forward = [owners[row.argsort()[-1]] == i for i, row in enumerate(scores)]
    backward = [column.argsort()[-1] == owners[t] for t, column in enumerate(scores.T)]
    return time.perf_counter() - began, 100 * float(np.mean(forward)), 100 * float(np.mean(backward))


def main(items: int = 5000, texts: tuple[int, ...] = (25_000, 100_000), width: int = 512, whole_up_to: int = 25_000) -> None:
    """Print a row for every number of texts; the whole matrix is tried up to `whole_up_to` of them."""
    print("| items x texts | how | s | memory, MB | R@1 item to text | R@1 text to item |\n|---|---|---:|---:|---:|---:|")
    for count in texts:
        for how in (blocks, whole) if count <= whole_up_to else (blocks,):
            mb, (seconds, forward, backward) = peak_mb(vectors, how, items, count, width)
            print(f"| {items:,} x {count:,} | {how.__name__} | {seconds:.1f} | {mb:,.0f} | {forward:.2f} | {backward:.2f} |")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
