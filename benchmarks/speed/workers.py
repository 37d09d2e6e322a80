"""What a step costs on many workers, by counting: a model of 8, 64 and 512 GPUs.

    python -m benchmarks.speed.workers

The bytes that a step hands to torch.distributed are counted in one process, whose other worker is imagined, and its
floating-point operations by torch; what streams take is measured in this process. The model adds them up.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import tyro
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.engine import NOT_TRAINED, batches, engine
from benchmarks.speed.streams import write
from benchmarks.timer import device, note, random_bert
from multicse.data.offline.demo import write_demo_shards
from multicse.pipelines import parts, registry
from multicse.trainers import gather
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.text_fit import prepare
from multicse.trainers.recipe import Recipe

RATE, NODE, INSIDE, ACROSS, DELAY, CORES = 400e12, 8, 300e9, 50e9, 20e-6, 16
ASSUMED = f"""Predicted, with the paper's batch on every GPU and BERT-base for every transformer of texts. Assumed:
{RATE / 1e12:.0f} TFLOP/s that a GPU reaches in bf16, nodes of {NODE}, {INSIDE / 1e9:.0f} GB/s a GPU inside a node and
{ACROSS / 1e9:.0f} GB/s across nodes, {1e6 * DELAY:.0f} µs for each of log2(GPUs) rounds of a collective, {CORES} cores a GPU
for its streams, photographs of 500 x 375 and sounds of 10 s. Gradients hide behind the backward, two thirds of the work;
nothing else is hidden."""
ROWS = {
    **{"simcse": "bert-base", "visualcse": "bert-base", "audiocse": "bert-base", "sgbert": "bert-base"},
    **{"mocoutrl": "bert-base", "gclsr": "pwva-att-gp", "cyclip": "cyclip-s", "clap": "cyclap-s"},
}
"""The recipe of every paper that the model is of."""
SAMPLES, WORLDS = 4, (8, 64, 512)
QUIET: dict[str, Any] = {**NOT_TRAINED, "evaluation.data": None, "run.precision": "fp32", "run.gpus_per_worker": 0}


class Collectives:
    """torch.distributed as the first of two equal workers sees it, whose other one is imagined; what is sent is counted.

    Attributes:
        found: Bytes that losses exchange: ``gathered`` rows, gradients that are ``returned`` to the rows of all workers; and
            ``calls``. BatchNorm's sums, two numbers a channel, are left out.
    """

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return 2

    def get_rank(self) -> int:
        return 0

    def all_gather(self, parts: list[torch.Tensor], x: torch.Tensor) -> None:
        self.found.update({"gathered": x.nbytes, "calls": 1})
        torch._foreach_copy_(parts, [x, x])

    def all_reduce(self, x: torch.Tensor, async_op: bool = False) -> torch.Tensor:
        self.found.update({"returned": x.nbytes, "calls": 1})
        return x.mul_(2)


def counted(made: Engine) -> tuple[Counter[str], float]:
    """What one of two workers exchanges in a step with the recipe's batches, and its floating-point operations."""
    method, workers = made.method.train(), Collectives()
    with patch.object(gather, "dist", workers), FlopCounterMode(display=False) as operations:
        for streams in made.recipe.method.turns().values():
            losses = method({name: batches(made, name, 1)[0] for name in streams}).losses
            torch.stack([*losses.values()]).sum().backward()
            workers.found["gradients"] += sum(p.nbytes for p in method.parameters() if p.requires_grad)  # of other turns too
    return workers.found, float(operations.get_total_flops())


@dataclass
class Cost:
    """A step of one worker: floating-point operations, bytes, and seconds of a core that reading its batch takes."""

    operations: float
    bytes: Counter[str]
    stream: float

    def seconds(self, world: int) -> dict[str, float]:
        """Of a step on so many GPUs, by what it waits for."""
        sent, ring = self.bytes, (world - 1) / world / (INSIDE if world <= NODE else ACROSS)
        work = self.operations / RATE
        waits = {
            "work": work,
            "gradients": max(0.0, 2 * ring * sent["gradients"] - 2 / 3 * work),
            "gathered rows": ring * world * (sent["gathered"] + 2 * sent["returned"]),
            "delays of small collectives": (world - 1).bit_length() * DELAY * sent["calls"],
        }
        return {**waits, "streams": max(0.0, self.stream / CORES - sum(waits.values()))}


def cost(recipe: Recipe) -> Cost:
    """Counted on few samples, since operations and rows grow with the batch. The cosines with other workers' rows, which
    grow with its square, are left out: below 1 % of the work on 512 GPUs."""
    sizes = {f"streams.{name}.batch_size": stream.batch_size for name, stream in recipe.streams.items()}
    times = max(sizes.values()) / SAMPLES
    made = engine(recipe.changed({name: max(2, round(size / times)) for name, size in sizes.items()}))
    found, operations = counted(made)
    grown = {"gathered": times, "returned": times / 2}  # of two workers
    sent = Counter({name: int(count * grown.get(name, 1)) for name, count in found.items()})
    windows = {f"streams.{name}.window": stream.batch_size for name, stream in recipe.streams.items()}
    made.recipe = recipe.changed(windows)  # of one batch, so that nothing is read ahead of the last
    began = time.process_time()  # streams read at the same time, each in a thread
    for reader in made._readers().values():
        for _ in range(reader.batches):
            next(reader)
    stream = (time.process_time() - began) / made.steps
    return Cost(times * operations, sent, stream)


def papers(place: Path) -> dict[str, Recipe]:
    """Recipes in the papers' sizes, on made data and random weights."""
    write_demo_shards(place, ("text",))
    write("photographs", place / "image", 128)
    write("sounds", place / "audio", 128)
    places = {"text": "text", "image": "image", "audio": "audio", "pairs": "image"}
    bert = parts.SMALL.model_copy(update={"path": random_bert("12x768", str(place / "bert"))})
    changes = {
        "streams.text.lexicon": "small",
        "method.image.path": None,
        "method.tower.path": None,
        "encoder.vectors": None,
        "encoder.epochs": 1,
    }
    found = {}
    for name, row in ROWS.items():
        recipe = registry.load(name).RECIPES[row]()
        shards = {f"streams.{stream}.shards": str(place / places[stream]) for stream in recipe.streams}
        if name == "clap":
            shards["streams.pairs.shards"] = str(place / "audio")
        own: dict[str, Any] = {path: value for path, value in changes.items() if path in recipe.flat()}
        own |= {} if name == "gclsr" else {"encoder": bert}
        run = {"run.output": str(place / name), "run.max_steps": 2}
        found[name] = recipe.changed({**shards, **own, **QUIET, **run})
        prepare(found[name])
    return found


def main() -> None:
    """Print a row for each paper."""
    device()
    columns = ["method", "batch", "TFLOP", "gradients, MB", "gathered, KB", "calls", "streams, core s"]
    columns += [f"{world} GPUs: samples/s, efficiency" for world in WORLDS] + ["what breaks first"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    with tempfile.TemporaryDirectory() as place:
        for name, recipe in papers(Path(place)).items():
            one, batch = cost(recipe), recipe.streams[recipe.lead].batch_size
            waits, alone = {world: one.seconds(world) for world in WORLDS}, sum(one.seconds(1).values())
            took = {world: sum(parts.values()) for world, parts in waits.items()}
            broken = [world for world in WORLDS if alone / took[world] < 0.9]
            first = waits[(broken or WORLDS)[0]]
            del first["work"]
            cells = [name, f"{batch}", f"{one.operations / 1e12:.2f}", f"{one.bytes['gradients'] / 1e6:,.0f}"]
            cells += [f"{one.bytes['gathered'] / 1e3:,.0f}", f"{one.bytes['calls']}", f"{one.stream:.3f}"]
            cells += [f"{batch * world / took[world]:,.0f}, {alone / took[world]:.0%}" for world in WORLDS]
            cells += [max(first, key=lambda what: first[what]) if broken else "nothing"]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    note("scale", f"{ASSUMED}\n\n" + "\n".join(lines))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
