"""Large batches by cached gradients: peak memory and time of a step beside those of a small batch.

    python -m benchmarks.speed.scale [--model DIR] [--batch 4096] [--chunk 64] [--pairs 8192]

SimCSE on `batch` sentences of 32 tokens at most, `chunk` at a time, against the same step of `chunk` sentences; and CLIP on
pairs of pictures of 64 pixels and captions. Every side is a process of its own, and its peak holds weights, optimizer and
losses. Time is processor time of a step, of the small batch the best of five.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import tyro

from benchmarks.speed.engine import Preloaded, batches, engine, text_recipe
from benchmarks.speed.sts import minilm
from benchmarks.timer import clock, device, peak_mb
from data.batch import Batch
from pipelines import cyclip
from pipelines.cli import prepare
from trainers.engine.window import Window
from trainers.recipe import Recipe


def arguments(recipe: Recipe, size: int, steps: int) -> tuple[str, int, int]:
    """What the child trains with; the model is made in what is measured."""
    return recipe.to_json(), size, steps


def train(content: str, size: int, steps: int) -> float:
    """Seconds of a step on `size` samples, which are those of the stream's first batch again and again."""
    device()
    recipe = Recipe.from_json(content)
    made = engine(recipe)
    (stream,) = recipe.streams
    first = batches(made, stream, 1)[0]
    rows = torch.arange(size) % len(first)
    readers: Any = {stream: Preloaded([Batch({name: t[rows] for name, t in first.tensors.items()}, first.keys)])}
    window, took = Window(readers), []
    for step in range(steps):
        began = clock()
        made.stepper(step, readers, window)
        took.append(clock() - began)
    return min(took)


def side(recipe: Recipe, size: int, chunk: int | None, steps: int) -> tuple[float, float]:
    """Peak in MB, and seconds a sample; printed as well."""
    peak, seconds = peak_mb(arguments, train, recipe.replace("run.chunk", chunk), size, steps)
    print(f"| {size:,} | {chunk or 'all'} | {peak:,.0f} | {1e3 * seconds / size:.1f} |", flush=True)
    return peak, seconds / size


def compare(title: str, recipe: Recipe, size: int, chunk: int) -> None:
    """The table of one method."""
    print(f"\n{title}\n| samples | at a time | peak MB | ms a sample |\n|---:|---:|---:|---:|")
    small, large = side(recipe, chunk, None, 5), side(recipe, size, chunk, 1)
    print(f"\n{size // chunk} times the batch: {large[0] / small[0]:.2f} x the memory, {large[1] / small[1]:.2f} x the time")


def main(model: Path | None = None, batch: int = 4096, chunk: int = 64, pairs: int = 8192) -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as place:
        text = text_recipe(model or minilm(), place, chunk)
        clip = cyclip.demo().replace("run.output", f"{place}/clip").replace("run.workers", 0)
        prepare(clip)
        if batch:
            compare("SimCSE", text, batch, chunk)
        if pairs:
            compare("CyCLIPs", clip, pairs, chunk)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
