"""Triplets per second of MoCoUTRL's stream on one core, and how many sentences have a word to replace.

    python benchmarks/triplets.py TEXTS [--lines 5000] [--lexicon small] [--encoder models/small-bert-en]

TEXTS: one sentence a line, perhaps gzipped. With an encoder also the sentences per second that tokenising and one step of
training on three views of each take, which the stream has to keep up with.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from data.errors import DecodeError
from data.order import seed_of
from data.shards import RawSample
from data.streams.triplets import TripletTextStream
from data.window import column_chunks
from models.text_encoder import TextEncoder

CHOICES: tuple[Literal["token", "adjective"], ...] = ("token", "adjective")


@dataclass
class Arguments:
    """What is measured."""

    texts: Annotated[Path, tyro.conf.Positional]
    """One sentence a line."""
    lines: int = 5000
    """How many of them."""
    lexicon: str | None = None
    """WordNet's folder, or `small`; none: where packages put it."""
    encoder: str | None = None
    """Folder of a transformer, to compare with."""
    batch: int = 32
    """Samples of a step."""
    max_length: int = 32
    """Tokens that are kept of a sentence."""


def read(path: Path, lines: int) -> list[RawSample]:
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        texts = [line.strip() for _, line in zip(range(lines), file, strict=False)]
    return [RawSample("texts", str(number), {"txt": text.encode()}) for number, text in enumerate(texts) if text]


def rows_of(config: TripletTextStream, samples: list[RawSample], pass_: int) -> list[dict[str, Any]]:
    """What a reading task does for every sample, but for taking it out of the shard."""
    rows = []
    for sample in samples:
        try:
            rng = np.random.default_rng(seed_of(0, "text", pass_, sample.shard, sample.key))
            rows.append(config.row(sample, rng) | {"_key": sample.key})
        except DecodeError:
            continue
    return rows


def measure(config: TripletTextStream, samples: list[RawSample]) -> list[dict[str, Any]]:
    """A first pass, in which words are looked up, and a second, in which most are remembered."""
    rates, rows = [], []
    for pass_ in range(2):
        began = time.perf_counter()
        rows = rows_of(config, samples, pass_)
        rates.append(len(samples) / (time.perf_counter() - began))
    report = {
        "choose": config.choose,
        "sentences": len(samples),
        "share_with_candidate": round(len(rows) / len(samples), 4),
        "sentences_per_second_first_pass": round(rates[0]),
        "sentences_per_second_later": round(rates[1]),
        "triplets_per_second_later": round(rates[1] * len(rows) / len(samples)),
    }
    print(json.dumps(report), flush=True)
    return rows


def step_rates(path: str, config: TripletTextStream, rows: list[dict[str, Any]], batch: int) -> None:
    """Tokenising, and a step of AdamW on three views: triplets per second of both."""
    encoder = TextEncoder.from_pretrained(path).train()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-6)
    tokenize = partial(encoder.tokenize, max_length=config.max_length)
    seconds, cut, count = {"collate": 0.0, "step": 0.0}, 0, 0
    for columns in column_chunks(rows[: 30 * batch], batch):
        began = time.perf_counter()
        tensors = config.collate(columns, tokenize)
        seconds["collate"] += time.perf_counter() - began
        began = time.perf_counter()
        views = encoder.pooled(tensors["input_ids"].flatten(0, 1), tensors["attention_mask"].flatten(0, 1))
        optimizer.zero_grad()
        views.square().mean().backward()
        optimizer.step()
        seconds["step"] += time.perf_counter() - began
        cut, count = cut + int((~tensors["candidate"]).sum()), count + len(columns["_key"])
    rates = {f"triplets_per_second_{name}": round(count / value) for name, value in seconds.items()}
    print(json.dumps({"encoder": Path(path).name, "batch": batch, **rates, "cut_off_share": round(cut / count, 4)}))


def main() -> None:
    given = tyro.cli(Arguments, description=__doc__)
    torch.set_num_threads(1)
    samples = read(given.texts, given.lines)
    for choose in CHOICES:
        config = TripletTextStream(shards="x", choose=choose, lexicon=given.lexicon, max_length=given.max_length)
        rows = measure(config, samples)
        if given.encoder and choose == "token":
            step_rates(given.encoder, config, rows, given.batch)


if __name__ == "__main__":
    main()
