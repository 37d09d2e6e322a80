"""Check for performance regressions: speed relative to the usual alternative, compared with the lowest allowed ratio.

    python -m benchmarks.guard

Processor time of one thread is measured, sides alternate, and a ratio is the median over rounds, so that other programs on
the machine have little influence. A run with Ray and a run in one process take turns and are compared by wall time. A ratio
that is too low is measured again.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch.utils.data import DataLoader, Dataset, RandomSampler

from benchmarks.speed import road as main_road
from benchmarks.speed.engine import engine, loops, text_recipe
from benchmarks.timer import Call, race, ratios
from multicse.data.offline.demo import write_demo_shards
from multicse.data.shard_urls import filesystem
from multicse.data.shards import RawSample, ShardSet
from multicse.data.stream import Reader
from multicse.data.streams.base import StreamConfig
from multicse.data.streams.image import ImageStream
from multicse.data.tar import index_of
from multicse.evaluation.encoders.encoder import load_encoder
from multicse.pipelines import parts
from multicse.trainers.engine.text_fit import sentences

ROOT = Path(__file__).resolve().parents[1]
LEAST = {"step": 0.75, "stream": 0.68, "encode": 0.96, "start": 0.21, "road": 0.8}
"""Lowest allowed ratios: three quarters of the ratios on 2026-11-23; for `road`, the minimum for any machine."""
ROUNDS, STEPS, BATCH, BATCHES, SENTENCES = 3, 10, 32, 28, 600
"""Rounds, steps in memory and their batch size, batches of images, sentences to encode."""
ROAD_TURNS, ROAD_SECONDS = 3, 4.0
"""Turns of a run with Ray and of a run in one process, and their length."""


def measure(ours: Call, theirs: Call) -> float:
    """Return the speed of `ours` relative to `theirs`."""
    took = race({"ours": ours, "theirs": theirs}, ROUNDS)
    return statistics.median(ratios(took["theirs"], took["ours"]))


def step(folder: Path) -> float:
    """Compare steps of SimCSE in the engine with a minimal loop over the same batches."""
    sides = loops(engine(text_recipe(str(folder), BATCH)))

    def steps(side: Call) -> None:
        for _ in range(STEPS):
            side()

    return measure(partial(steps, sides["engine"]), partial(steps, sides["text"]))


class InShards(Dataset[dict[str, Any]]):
    """Samples of shards by index, decoded and augmented by the function of the stream."""

    def __init__(self, config: StreamConfig, shards: ShardSet) -> None:
        self.config, self.rng = config, np.random.default_rng(0)
        self.places = []
        for shard in shards.shards:
            fs, path = filesystem(shard.url)
            self.places += [(shard.url, members) for members in index_of(shard.url, str(fs.checksum(path))).members]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> dict[str, Any]:
        url, members = self.places[number]
        with open(url, "rb") as file:
            fields = {name: os.pread(file.fileno(), size, offset) for name, offset, size in members}
        return self.config.row(RawSample(str(number), url, fields), self.rng)


def stream(folder: Path) -> float:
    """Compare images from shards in this process with a DataLoader that decodes and augments with the same functions."""
    write_demo_shards(folder, ("image",))
    views: dict[str, Any] = {"flip": 0.0, "jitter": (0.4, 0.4, 0.0, 0.0), "grayscale_probability": 0}
    config = ImageStream(shards=str(folder / "image"), batch_size=64, size=32, **views)
    shards = config.open()
    dataset = InShards(config, shards)

    def ours() -> None:
        with Reader(config, "guard", shards, 0, 0, 1, None, BATCHES, inline=True) as reader:
            for _ in range(BATCHES):
                next(reader)

    def theirs() -> None:
        order = RandomSampler(dataset, num_samples=BATCHES * config.batch_size)
        for _ in DataLoader(dataset, config.batch_size, sampler=order):
            pass

    return measure(ours, theirs)


def encode(folder: Path) -> float:
    """Compare encoding of sentences in evaluation with `SentenceTransformer.encode` at its default batch size."""
    encoder = load_encoder(Path(parts.SMALL_ENCODER))
    texts = [*sentences(text_recipe(str(folder), BATCH))][:SENTENCES]
    return measure(partial(encoder.encode, texts), partial(encoder.model.encode, texts, show_progress_bar=False))


def start(folder: Path) -> float:
    """Compare the processor time of ``import torch`` with ``--help``."""

    def spent(*command: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    return statistics.median(spent("-c", "import torch") / spent("pipelines/simcse.py", "--help") for _ in range(3))


def road(folder: Path) -> float:
    """Compare the samples per second of SimCSE's demo with Ray and in one process."""
    speeds = main_road.measure("simcse", (0, 1), ROAD_TURNS, ROAD_SECONDS)
    return statistics.median(ratios(speeds[1], speeds[0]))


def main() -> None:
    """Print the ratios. The exit code is 1 if one is too low twice."""
    torch.set_num_threads(1)
    checks: list[Callable[[Path], float]] = [step, stream, encode, start, road]
    rows, slower = ["| benchmark | ratio | at least |", "|---|---:|---:|"], []
    with tempfile.TemporaryDirectory() as place:
        for check in checks:
            name, found = check.__name__, check(Path(place))
            if found < LEAST[name]:
                found = max(found, check(Path(place)))
            rows.append(f"| {name} | {found:.2f} | {LEAST[name]:.2f} |")
            slower += [name] if found < LEAST[name] else []
    print("\n" + "\n".join(rows))
    if slower:
        sys.exit(f"slower than before: {', '.join(slower)}. If this is intended, lower the ratio in {__file__}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
