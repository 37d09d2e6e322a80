"""Whether something has become clearly slower: ratios to what a user would pick instead, compared with recorded ones.

    python -m benchmarks.guard [--record]

Processor time of one thread, sides in turns, medians; so neither the machine nor who else is on it decides. A ratio that is
lower than `LEAST` of the recorded one (benchmarks/guard.json) is measured again, and if it is low again, that is an error.
The main road, a run through Ray over the same run in one process, goes by the clock and must reach `ROAD` on any machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tyro

from benchmarks.speed.engine import bare, batches, engine, loops, text_recipe
from benchmarks.speed.road import options_of as road_options
from benchmarks.speed.road import run as road_run
from benchmarks.speed.streams import Side, sides_of
from benchmarks.timer import Call, device, race, ratio, show
from multicse.data.offline.demo import write_demo_shards
from multicse.evaluation.encoders.encoder import load_encoder
from multicse.pipelines import parts
from multicse.trainers.engine.text_fit import sentences

ROOT = Path(__file__).resolve().parents[1]
RECORDED = Path(__file__).with_suffix(".json")
LEAST = 0.75
ROAD, ROAD_STEPS = 0.8, 200
"""Smallest ratio of a run of so many steps through Ray, and in process."""
ROUNDS = 5
STEPS, BATCH, BATCHES, SENTENCES = 10, 32, 28, 600
"""Of a round: steps of training of so many sentences, batches of pictures, sentences to encode."""


def step(folder: Path) -> dict[str, Call]:
    """SimCSE on the small encoder: the engine's steps, and a bare loop over padded tokens."""
    made = engine(text_recipe(Path(parts.SMALL_ENCODER), str(folder), BATCH))
    step = loops(made)[0]["engine"]
    ready = [
        {name: rows.flatten(0, 1).repeat_interleave(2, 0) for name, rows in batch.tensors.items()}
        for batch in batches(made, "text", STEPS)
    ]

    def ours() -> None:
        for _ in range(STEPS):
            step()

    return {"ours": ours, "theirs": bare(parts.SMALL_ENCODER, ready)}


def stream(folder: Path) -> dict[str, Call]:
    """Pictures from shards in this process, and a DataLoader with the same decoding and views."""
    config = parts.offline_images(64).model_copy(update={"shards": str(folder / "image")})
    sides = sides_of(config, config.open())

    def drain(side: Side) -> None:
        for _ in side(BATCHES):
            pass

    return {"ours": partial(drain, sides["in process"]), "theirs": partial(drain, sides["DataLoader, 0 workers"])}


def encode(folder: Path) -> dict[str, Call]:
    """Vectors of sentences: our evaluation, and `SentenceTransformer.encode` at its own batch size."""
    encoder = load_encoder(Path(parts.SMALL_ENCODER))
    texts = [*sentences(text_recipe(Path(parts.SMALL_ENCODER), str(folder), BATCH))][:SENTENCES]
    return {
        "ours": partial(encoder.encode, texts),
        "theirs": partial(encoder.model.encode, texts, show_progress_bar=False),
    }


def measure(make: Callable[[Path], dict[str, Call]], folder: Path) -> float:
    """How many times faster ours is."""
    took = race(make(folder), ROUNDS)
    show(make.__name__, took)
    return ratio(took["theirs"], took["ours"])


def start() -> float:
    """Processor time of ``import torch`` over that of ``--help``."""

    def spent(*command: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    rounds = [spent("-c", "import torch") / spent("pipelines/simcse.py", "--help") for _ in range(3)]
    return statistics.median(rounds)


def road() -> float:
    """SimCSE's demo: samples per second through Ray over those in one process."""
    options = road_options("simcse", ROAD_STEPS)
    one, ray = (road_run("simcse", ROAD_STEPS, workers, options).speed for workers in (0, 1))
    return ray / one


def main(record: bool = False) -> None:
    """Print the ratios; exit code 1 where one is clearly lower than recorded. `record`: write them down instead."""
    if not record and not RECORDED.exists():
        sys.exit(f"nothing to compare with, no {RECORDED}: on a quiet machine run python -m benchmarks.guard --record")
    device()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_demo_shards(folder, ("image",))
        checks: dict[str, Callable[[], float]] = {
            make.__name__: partial(measure, make, folder) for make in (step, stream, encode)
        }
        checks |= {"start": start, "road": road}
        found = {name: check() for name, check in checks.items()}
        if record:
            del found["road"]
            RECORDED.write_text(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=2) + "\n")
            return
        recorded = json.loads(RECORDED.read_text()) | {"road": ROAD}
        least = {name: LEAST * value for name, value in recorded.items()} | {"road": ROAD}
        for name in [name for name in found if found[name] < least[name]]:
            found[name] = max(found[name], checks[name]())
    print("\n| what | ratio | recorded | |\n|---|---:|---:|---|")
    slower = [name for name in found if found[name] < least[name]]
    for name, value in found.items():
        print(f"| {name} | {value:.2f} | {recorded[name]:.2f} | {'**slower**' if name in slower else 'ok'} |")
    if slower:
        sys.exit(f"clearly slower than recorded: {', '.join(slower)}. If it has to be: python -m benchmarks.guard --record")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
