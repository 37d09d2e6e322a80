"""What a step costs on many workers, by counting: a model of 8, 64 and 512 GPUs, checked on this machine's cores.

    python -m benchmarks.speed.workers [--timed 1 2 4]

The bytes that a step hands to torch.distributed are counted in one process with imagined workers, and compared with those
of two real gloo processes. Floating-point operations are counted by torch; what streams take is measured in this process.
The model adds them up. On gloo processes that share two cores it is compared with the clock.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import tyro
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.engine import NOT_TRAINED, batches, engine
from benchmarks.speed.streams import write
from benchmarks.timer import Target, device, note, random_bert
from multicse.data.offline.demo import write_demo_shards
from multicse.pipelines import parts, registry
from multicse.pipelines.cli import prepare as make_shards
from multicse.trainers import gather
from multicse.trainers.engine.checkpoint import Store
from multicse.trainers.engine.hosts import LocalHost
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.step import Window
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
    **{"mocoutrl": "bert-base-both", "gclsr": "pwva-att-gp", "cyclip": "cyclip-s", "clap": "scratch-cyclap-s"},
}
"""The recipe of every paper that the model is of."""
SAMPLES, WORLDS = 4, (8, 64, 512)
QUIET: dict[str, Any] = {**NOT_TRAINED, "evaluation.data": None, "run.precision": "fp32", "run.gpus_per_worker": 0}


class Collectives:
    """torch.distributed, whose bytes are counted: the real one, or with `world` that of so many equal workers."""

    def __init__(self, found: Counter[str], world: int | None) -> None:
        self.found, self.world = found, world

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def is_initialized(self) -> bool:
        return self.world is not None or dist.is_initialized()

    def get_world_size(self) -> int:
        return self.world or dist.get_world_size()

    def get_rank(self) -> int:
        return 0 if self.world else dist.get_rank()

    def all_gather(self, parts: list[torch.Tensor], x: torch.Tensor) -> None:
        self.found.update({"gathered": x.nbytes, "calls": 1})
        if self.world is None:
            dist.all_gather(parts, x)
        else:
            torch._foreach_copy_(parts, [x] * self.world)

    def all_reduce(self, x: torch.Tensor, async_op: bool = False) -> Any:
        self.found.update({"returned": x.nbytes, "calls": 1})
        return dist.all_reduce(x, async_op=async_op) if self.world is None else x.mul_(self.world)


@contextmanager
def counting(world: int | None) -> Iterator[Counter[str]]:
    """Bytes that losses exchange: ``gathered`` rows, gradients that are ``returned`` to the rows of all workers; and
    ``calls``. BatchNorm's sums, two numbers a channel, are left out."""
    found: Counter[str] = Counter()
    with patch.object(gather, "dist", Collectives(found, world)):
        yield found


def imagined(made: Engine, world: int) -> tuple[Counter[str], float]:
    """What one of `world` workers exchanges in a step with the recipe's batches, and its floating-point operations."""
    method = made.method.train()
    with counting(world) as found, FlopCounterMode(display=False) as operations:
        for streams in made.recipe.method.turns().values():
            losses = method({name: batches(made, name, 1)[0] for name in streams}).losses
            torch.stack([*losses.values()]).sum().backward()
            found["gradients"] += sum(p.nbytes for p in method.parameters() if p.requires_grad)  # of other turns too
    return found, float(operations.get_total_flops())


def hook(found: Counter[str], bucket: dist.GradBucket) -> Any:
    """DDP's, of a bucket of gradients."""
    found["gradients"] += bucket.buffer().nbytes
    assert dist.group.WORLD is not None
    return allreduce_hook(dist.group.WORLD, bucket)


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
    found, operations = imagined(made, 2)
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
    changes = {"streams.text.lexicon": "small", "method.image.path": None, "encoder.vectors": None, "encoder.epochs": 1}
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


class Worker(LocalHost):
    """One of several processes."""

    def __init__(self, store: Store, rank: int, world: int) -> None:
        super().__init__(store)
        self.rank, self.world_size = rank, world


def _work(rank: int, world: int, contents: Mapping[str, str], folder: str, steps: int) -> None:
    """Steps of every recipe: what they exchanged, and what a step and a byte took."""
    device()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % 2]})
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{world}-{steps}", rank=rank, world_size=world)
    told: dict[str, Any] = {}
    for name, content in contents.items():
        made = engine(Recipe.from_json(content), host=Worker(Store(f"{folder}/{rank}"), rank, world))
        readers, model = made._readers(), made.stepper.model
        window, stamps = Window(readers), [time.perf_counter()]
        with counting(None) as found:
            if isinstance(model, DistributedDataParallel):
                model.register_comm_hook(found, lambda found, bucket: hook(found, bucket))  # no string annotations
            for step in range(steps):
                made.stepper(step, readers, window)
                dist.barrier()
                stamps.append(time.perf_counter())
        seconds = [after - before for before, after in itertools.pairwise(stamps)]
        told[name] = {"found": found, "seconds": median(seconds[1:] or seconds)}
        for reader in readers.values():
            reader.close()
        # DDP waits for gloo's threads when it is the last that holds them, without letting these have the interpreter.
        del made, model, readers, window
        gc.collect()
    much, began = torch.ones(2**21), time.perf_counter()
    for _ in range(5):
        dist.all_reduce(much)
    told["a byte"] = (time.perf_counter() - began) / 5 / much.nbytes
    if rank == 0:
        Path(folder, "told.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def real(recipes: Mapping[str, Recipe], world: int, steps: int) -> dict[str, Any]:
    """What real workers tell of these recipes, each with the recipe's batch."""
    contents = {}
    for name, recipe in recipes.items():
        sizes = {f"streams.{stream}.batch_size": world * config.batch_size for stream, config in recipe.streams.items()}
        contents[name] = recipe.changed(sizes).to_json()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_work, args=(world, contents, folder, steps), nprocs=world)
        told: dict[str, Any] = json.loads(Path(folder, "told.json").read_text())
    return told


def offline(row: str, names: tuple[str, ...], place: Path) -> dict[str, Recipe]:
    """Recipes of the small encoder."""
    found = {}
    for name in names:
        changes = {**QUIET, "run.output": str(place / f"{row}-{name}"), "run.max_steps": 100}
        found[name] = registry.load(name).RECIPES[row]().changed(changes)
        make_shards(found[name])
        prepare(found[name])
    return found


def main(timed: tuple[int, ...] = (1, 2, 4)) -> None:
    """Print two targets and two tables."""
    device()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        smokes = offline("smoke", tuple(ROWS), place)
        told = real(smokes, 2, 1)
        apart = []
        for name, recipe in smokes.items():
            counted = imagined(engine(recipe), 2)[0]
            apart += [1 + abs(told[name]["found"].get(kind, 0) / count - 1) for kind, count in counted.items()]
        what = "bytes and calls of a step, counted for 2 imagined workers / for 2 of gloo, the worst of all methods"
        Target(area="scale", what=what, at_most=1.01, measured=[max(apart)]).report()

        demos = offline("demo", ("simcse", "visualcse"), place)
        lines, off = ["| method | gloo workers on 2 cores | ms a step | predicted |", "|---|---:|---:|---:|"], []
        steps = 5
        alone = real(demos, 1, steps)
        for world in timed:
            seen = real(demos, world, steps) if world > 1 else alone
            for name in demos:
                sent, seconds = seen[name]["found"].get("gradients", 0) / steps, seen[name]["seconds"]
                predicted = alone[name]["seconds"] * max(1, world / 2) + sent * seen["a byte"]
                off += [max(seconds / predicted, predicted / seconds)] if world > 1 else []
                lines.append(f"| {name} | {world} | {1e3 * seconds:.0f} | {1e3 * predicted:.0f} |")
        what = "a step of 2 and 4 gloo workers: predicted / measured, or the other way round"
        Target(area="scale", what=what, at_most=1.25, measured=off, why="see the table").report()
        note("scale", "\n".join(lines))

        columns = ["method", "batch", "TFLOP", "gradients, MB", "gathered, KB", "calls", "streams, core s"]
        columns += [f"{world} GPUs: samples/s, efficiency" for world in WORLDS] + ["what breaks first"]
        lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for name, recipe in papers(place).items():
            one, batch = cost(recipe), recipe.streams[recipe.lead].batch_size
            waits, alone_s = {world: one.seconds(world) for world in WORLDS}, sum(one.seconds(1).values())
            took = {world: sum(parts.values()) for world, parts in waits.items()}
            broken = [world for world in WORLDS if alone_s / took[world] < 0.9]
            first = waits[(broken or WORLDS)[0]]
            del first["work"]
            cells = [name, f"{batch}", f"{one.operations / 1e12:.2f}", f"{one.bytes['gradients'] / 1e6:,.0f}"]
            cells += [f"{one.bytes['gathered'] / 1e3:,.0f}", f"{one.bytes['calls']}", f"{one.stream:.3f}"]
            cells += [f"{batch * world / took[world]:,.0f}, {alone_s / took[world]:.0%}" for world in WORLDS]
            cells += [max(first, key=lambda what: first[what]) if broken else "nothing"]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
        note("scale", f"{ASSUMED}\n\n" + "\n".join(lines))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
