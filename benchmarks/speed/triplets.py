"""Triplets per second of MoCoUTRL's stream on one core, against what a step of training on their three views takes.

    python -m benchmarks.speed.triplets [--lines 3000] [--lexicon small] [--encoder models/small-bert-en]

The stream has to keep up with the step. In a first pass words are looked up in WordNet, later most are remembered.
"""

from __future__ import annotations

import gzip
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
import tyro

from benchmarks.timer import clock, datasets, device
from data.errors import DecodeError
from data.order import seed_of
from data.shards import RawSample
from data.streams.triplets import TripletTextStream
from data.window import columns_of
from models.text_encoder import TextEncoder
from pipelines.parts import SMALL_ENCODER


def rows_of(config: TripletTextStream, samples: list[RawSample], pass_: int) -> list[dict[str, Any]]:
    """What a reading task does for every sample, but for taking it out of the shard; samples without a word are left out."""
    rows = []
    for sample in samples:
        try:
            rng = np.random.default_rng(seed_of(0, "text", pass_, sample.shard, sample.key))
            rows.append(config.row(sample, rng) | {"_key": sample.key})
        except DecodeError:
            continue
    return rows


def main(lines: int = 3000, lexicon: str = "small", encoder: str = SMALL_ENCODER, batch: int = 32) -> None:
    """Print a table. `lexicon`: WordNet's folder, or `small`, the project's own 200 words."""
    device()
    with gzip.open(datasets("text_unlabeled", "wiki_combined.en.txt.gz"), "rt", encoding="utf-8") as file:
        texts = [line.strip() for line in islice(file, lines) if line.strip()]
    samples = [RawSample("texts", str(number), {"txt": text.encode()}) for number, text in enumerate(texts)]
    config = TripletTextStream(shards="x", lexicon=lexicon, max_length=32)
    seconds, counts = dict[str, float](), dict[str, int]()
    rows: list[dict[str, Any]] = []
    for pass_, name in enumerate(("stream, first pass", "stream, later")):
        began = clock()
        rows = rows_of(config, samples, pass_)
        seconds[name], counts[name] = clock() - began, len(rows)
    model = TextEncoder.from_pretrained(encoder).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    for first in range(0, min(len(rows), 10 * batch), batch):
        columns = columns_of(rows[first : first + batch])
        parts = ("tokenising", "training step")
        began = clock()
        tensors = config.collate(columns, partial(model.tokenize, max_length=32))
        middle = clock()
        views = model.pooled(tensors["input_ids"].flatten(0, 1), tensors["attention_mask"].flatten(0, 1))
        optimizer.zero_grad()
        views.square().mean().backward()
        optimizer.step()
        for name, took in zip(parts, (middle - began, clock() - middle), strict=True):
            seconds[name] = seconds.get(name, 0.0) + took
            counts[name] = counts.get(name, 0) + len(columns["_key"])
    print(f"{len(texts):,} sentences, {len(rows) / len(texts):.1%} have a word with a synonym and an antonym\n")
    print("| part | triplets/s | as fast as the training step |\n|---|---:|---:|")
    rates = {name: counts[name] / seconds[name] for name in seconds}
    for name, value in rates.items():
        print(f"| {name} | {value:,.0f} | {value / rates['training step']:.1f} x |")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
