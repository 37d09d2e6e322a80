"""Whether something has become clearly slower: ratios to what a user would pick instead, compared with recorded ones.

    python -m benchmarks.guard [--record]

Processor time of one thread, sides in turns, medians; so neither the machine nor who else is on it decides. A ratio that is
lower than `LEAST` of the recorded one (benchmarks/guard.json) is measured again, and if it is low again, that is an error.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from torch.utils.data import DataLoader

from benchmarks.timer import Call, device, race, ratio, show

ROOT = Path(__file__).resolve().parents[1]
RECORDED = Path(__file__).with_suffix(".json")
LEAST = 0.75
ROUNDS = 5
STEPS, BATCH = 12, 32


def step(folder: Path) -> dict[str, Call]:
    """SimCSE on the small encoder: our loop, with stream, clipping and schedule, and a bare loop over preloaded tokens."""
    from pipelines import parts, simcse
    from trainers.engine.checkpoint import build_method
    from trainers.engine.hosts import LocalHost
    from trainers.engine.loop import Engine
    from trainers.engine.store import Store

    recipe = parts.changed(
        simcse.demo(),
        {
            "streams.text.shards": str(folder / "text"),
            "streams.text.batch_size": BATCH,
            "evaluation.select": None,
            "evaluation.watch": (),
            "evaluation.final": (),
            "run.max_steps": STEPS,
            "run.output": str(folder / "run"),
            "run.threads": 1,
        },
    )
    texts = [text for text, _ in zip(_sentences(), range(STEPS * BATCH), strict=False)]
    batches = [texts[i : i + BATCH] for i in range(0, len(texts), BATCH)]

    def ours() -> None:
        with tempfile.TemporaryDirectory() as place:
            Engine(recipe, LocalHost(Store(place)), None).run()

    def bare() -> None:
        encoder: Any = build_method(recipe).sentence_encoder
        encoder.train()
        optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-4)
        for batch in batches:
            tokens = encoder.tokenize(batch * 2, 32)
            states = encoder.model(**tokens).last_hidden_state
            mask = tokens["attention_mask"][..., None]
            vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
            cosines = vectors[:BATCH] @ vectors[BATCH:].T / 0.2
            torch.nn.functional.cross_entropy(cosines, torch.arange(BATCH)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return {"ours": ours, "theirs": bare}


def stream(folder: Path) -> dict[str, Call]:
    """Pictures from shards in this process, and a DataLoader over samples in memory with the same decoding and views."""
    import numpy as np

    from data.shards import RawSample, ShardSet, read
    from data.stream import Reader
    from pipelines import parts

    config = parts.offline_images(64).model_copy(update={"shards": str(folder / "image")})
    shards = ShardSet.open(config.shards)
    found = [sample for shard in shards.shards for sample in read(shard, list(range(300))) if isinstance(sample, RawSample)]
    rng, count = np.random.default_rng(0), len(found) // 64

    def row(sample: RawSample) -> torch.Tensor:
        return torch.from_numpy(config.row(sample, rng)["image"])

    def ours() -> None:
        reader = Reader(config, "image", shards, 0, 0, 1, None, 0, count, inline=True)
        for _ in range(count):
            next(reader)
        reader.close()

    def theirs() -> None:
        loader: Any = DataLoader(
            found,  # type: ignore[arg-type]  # a list is one, as far as it matters
            batch_size=64,
            shuffle=True,
            drop_last=True,
            collate_fn=lambda samples: torch.stack([*map(row, samples)]),
        )
        for _ in loader:
            pass

    return {"ours": ours, "theirs": theirs}


def encode(folder: Path) -> dict[str, Call]:
    """Vectors of sentences: our evaluation, and `SentenceTransformer.encode` at its own batch size."""
    from evaluation.encoders.encoder import load_encoder
    from pipelines.parts import SMALL_ENCODER

    encoder = load_encoder(Path(SMALL_ENCODER))
    texts = [text for text, _ in zip(_sentences(), range(800), strict=False)]
    return {
        "ours": partial(encoder.encode, texts),
        "theirs": partial(encoder.model.encode, texts, show_progress_bar=False),
    }


def _sentences() -> list[str]:
    from data.offline.sentences import wiki_sentences

    return list(wiki_sentences())


def measure(sides: Mapping[str, Call], name: str) -> float:
    """How many times faster ours is."""
    took = race(sides, ROUNDS)
    show(name, took)
    return ratio(took["theirs"], took["ours"])


def start() -> float:
    """Processor time of ``import torch`` over that of ``--help``."""

    def spent(*command: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    rounds = [spent("-c", "import torch") / spent("pipelines/simcse.py", "--help") for _ in range(ROUNDS)]
    return statistics.median(rounds)


def main(record: bool = False) -> None:
    """Print the ratios; exit code 1 where one is clearly lower than recorded. `record`: write them down instead."""
    from data.offline.demo import write_demo_shards

    device()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_demo_shards(folder, ("text", "image"))
        checks: dict[str, Callable[[], float]] = {
            name: partial(measure, make(folder), name)
            for name, make in {"step": step, "stream": stream, "encode": encode}.items()
        }
        checks["start"] = start
        found = {name: check() for name, check in checks.items()}
        if record:
            RECORDED.write_text(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=2) + "\n")
            return
        recorded = json.loads(RECORDED.read_text())
        for name in [name for name in found if found[name] < LEAST * recorded[name]]:
            found[name] = max(found[name], checks[name]())
    print("\n| what | ratio | recorded | |\n|---|---:|---:|---|")
    slower = [name for name in found if found[name] < LEAST * recorded[name]]
    for name, value in found.items():
        print(f"| {name} | {value:.2f} | {recorded[name]:.2f} | {'**slower**' if name in slower else 'ok'} |")
    if slower:
        sys.exit(f"clearly slower than recorded: {', '.join(slower)}. If it has to be: python -m benchmarks.guard --record")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
