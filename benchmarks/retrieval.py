"""Peak memory and time of exact retrieval in both directions, in blocks against the whole matrix of scores.

    python benchmarks/retrieval.py [--items 5000] [--texts 25000 100000] [--width 512]

Each row runs in a process of its own on the same random vectors. "Memory" is the growth of its peak over what the vectors
themselves take; it must not grow with the database. "Whole matrix" is the usual script: all cosines in float32, every row
and every column sorted. Both must find the same. Exits with 1 when they do not, or the memory grows.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

if __name__ == "__main__":  # the repository before what is installed, so that a clone measures itself
    sys.path[0] = str(Path(__file__).resolve().parents[1])


PER_TEXT = 200  # bytes of ranks and places that a text more may take; a score with every item would be 4 times the items
NOISE = 24.0  # MB by which a peak varies from run to run
APART = 0.1  # points by which the two R@1 may differ, since float32 rounds

Found = dict[str, float]


@dataclass
class Arguments:
    """What is compared."""

    items: int = 5000
    texts: tuple[int, ...] = (25_000, 100_000)
    width: int = 512
    whole_up_to: int = 25_000
    """Most texts for which the whole matrix is tried."""
    one: tuple[str, int] | None = None
    """Run this one alone: blocks or whole, and how many texts."""


def vectors(items: int, texts: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit vectors (N, d) and (T, d) in float32, texts near their item, and its number (T,)."""
    rng = np.random.default_rng(0)
    pictures = rng.standard_normal((items, width), dtype=np.float32)
    owners = np.arange(texts) * items // texts
    captions = rng.standard_normal((texts, width), dtype=np.float32)
    for start in range(0, texts, 4096):
        captions[start : start + 4096] *= 5
        captions[start : start + 4096] += pictures[owners[start : start + 4096]]
    for rows in (pictures, captions):
        for start in range(0, len(rows), 4096):
            rows[start : start + 4096] /= np.linalg.norm(rows[start : start + 4096], axis=1, keepdims=True)
    return pictures, captions, owners


def blocks(pictures: np.ndarray, captions: np.ndarray, owners: np.ndarray) -> tuple[float, float]:
    """R@1 in both directions, by evaluation/tasks/retrieval.py."""
    from evaluation.tasks.retrieval import best_ranks, paired_ranks, recall_at

    ranks = paired_ranks(pictures, captions, owners)
    return recall_at(best_ranks(ranks.text, owners))[1], recall_at(ranks.item)[1]


def whole(pictures: np.ndarray, captions: np.ndarray, owners: np.ndarray) -> tuple[float, float]:
    """R@1 in both directions, from all scores at once."""
    scores = pictures @ captions.T
    forward = [np.isin(np.argsort(-row), np.flatnonzero(owners == i)).argmax() for i, row in enumerate(scores)]
    backward = [int(np.flatnonzero(np.argsort(-column) == owners[t])[0]) for t, column in enumerate(scores.T)]
    return 100 * float(np.mean(np.equal(forward, 0))), 100 * float(np.mean(np.equal(backward, 0)))


def measure(a: Arguments, kind: str, texts: int) -> Found:
    """Seconds, growth of the peak in MB, and both R@1."""
    import evaluation.tasks.retrieval  # noqa: F401  # its libraries are not what is measured

    blocks(*vectors(64, 128, 8))
    given = vectors(a.items, texts, a.width)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    forward, backward = (blocks if kind == "blocks" else whole)(*given)
    seconds = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": seconds, "MB": grown, "forward": forward, "backward": backward}


def missed(results: dict[int, dict[str, Found]]) -> list[str]:
    """The bounds that are missed, by what was measured for each number of texts, in blocks and with the whole matrix."""
    found = []
    for texts, both in results.items():
        if len(both) == 2 and any(abs(both["blocks"][way] - both["whole"][way]) >= APART for way in ("forward", "backward")):
            found.append(f"{texts:,} texts: blocks and the whole matrix do not find the same")
    fewest, most = min(results), max(results)
    grown = results[most]["blocks"]["MB"] - results[fewest]["blocks"]["MB"]
    allowed = NOISE + PER_TEXT * (most - fewest) / 2**20
    if grown > allowed:
        found.append(f"memory: {grown:,.0f} MB more for {most:,} texts than for {fewest:,}, {allowed:,.0f} are allowed")
    return found


def main(a: Arguments) -> None:
    """Print a table."""
    if a.one is not None:
        print(json.dumps(measure(a, *a.one)))
        return
    print("| items x texts | how | s | memory, MB | R@1 item to text | R@1 text to item |\n|---|---|---|---|---|---|")
    results: dict[int, dict[str, Found]] = {}
    for texts in a.texts:
        results[texts] = found = {}
        for kind in ("blocks", "whole") if texts <= a.whole_up_to else ("blocks",):
            command = [sys.executable, __file__, "--items", str(a.items), "--width", str(a.width), "--one", kind, str(texts)]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            found[kind] = r = json.loads(result.stdout.splitlines()[-1])
            print(
                f"| {a.items:,} x {texts:,} | {kind} | {r['seconds']:.1f} | {r['MB']:,.0f} | {r['forward']:.2f} | "
                f"{r['backward']:.2f} |",
                flush=True,
            )
        if len(found) == 2:
            one, two = found["blocks"], found["whole"]
            print(
                f"\nblocks / whole: time {one['seconds'] / two['seconds']:.2f}, memory {one['MB'] / max(two['MB'], 1):.2f}\n"
            )
    if lines := missed(results):
        sys.exit("bounds missed:\n" + "\n".join(lines))


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
