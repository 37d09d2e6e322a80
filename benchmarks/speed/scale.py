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
from benchmarks.timer import Target, clock, device, peak_mb
from multicse.data.streams.base import Batch
from multicse.pipelines import cyclip, parts
from multicse.pipelines.cli import prepare
from multicse.trainers.engine.step import Window
from multicse.trainers.recipe import Recipe

MEMORY_GB = 8
"""What a machine of two cores has at least."""


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


def compare(title: str, recipe: Recipe, size: int, chunk: int) -> dict[int, tuple[float, float]]:
    """Peak in MB and seconds a sample of a small batch and of a large one, by their sizes; printed as well."""
    print(f"\n{title}\n| samples | at a time | peak MB | ms a sample |\n|---:|---:|---:|---:|")
    found = {}
    for samples, pieces, steps in ((chunk, None, 5), (size, chunk, 1)):
        peak, seconds = peak_mb(train, recipe.replace("run.chunk", pieces).to_json(), samples, steps)
        found[samples] = peak, seconds / samples
        print(f"| {samples:,} | {pieces or 'all'} | {peak:,.0f} | {1e3 * seconds / samples:.2f} |", flush=True)
    return found


def main(model: Path | None = None, batch: int = 4096, chunk: int = 64, pairs: int = 8192) -> None:
    """Print both tables, and a row a target."""
    with tempfile.TemporaryDirectory() as place:
        text = text_recipe(model or Path(parts.SMALL_ENCODER), place, chunk)
        tower = {"method.tower.width": 64, "method.tower.layers": 2, "method.embed_dim": 64}
        losses = {"method.i_cyclic": 0.0, "method.c_cyclic": 0.0, "method.captions": 0.0}
        clip = cyclip.demo().changed({**tower, **losses, "run.output": f"{place}/clip", "run.workers": 0})
        prepare(clip)
        found = compare("SimCSE", text, batch, chunk)
        (small, short), (large, long) = found[chunk], found[batch]
        peaks = {str(size): peak for size, (peak, _) in found.items()}
        matrix = f"of {large - small:,.0f} MB more, cosines, softmax and gradient are {12 * batch**2 / 2**20:,.0f}, "
        matrix += "and as many with a large encoder, whose own memory is a multiple of this one's"
        memory = f"SimCSE, small encoder: memory of batch {batch:,} in chunks of {chunk} / of batch {chunk}"
        Target(area="scale", what=memory, at_most=1.3, measured=[large / small], peak_mb=peaks, why=matrix).report()
        forward = "every sample has one more forward, a third of a step"
        seconds = f"SimCSE, small encoder: time per sample of batch {batch:,} / of batch {chunk}"
        Target(area="scale", what=seconds, at_most=1.4, measured=[long / short], why=forward).report()
        found = compare("CLIP", clip, pairs, chunk)
        fits = f"CLIP, small towers: memory of batch {pairs:,} in chunks of {chunk}"
        Target(area="scale", what=fits, at_most=MEMORY_GB, unit="GB", measured=[found[pairs][0] / 1024]).report()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
