"""Measure the overhead of the engine: its steps compared with a minimal loop.

    python -m benchmarks.speed.engine [--rounds 5]

Batches are in memory. The minimal loop has the same method, optimizers and clipping, and nothing else.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import tyro

from benchmarks.timer import Call, race, ratios, report
from multicse.commands.api import write_inputs
from multicse.data.streams.base import Batch
from multicse.pipelines import simcse, visualcse
from multicse.trainers.engine.hosts import Host
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.optim import UpdateOptimizer
from multicse.trainers.engine.step import Meter
from multicse.trainers.engine.store import Store
from multicse.trainers.recipe import Recipe

NOT_TRAINED: dict[str, Any] = {"evaluation.select": None, "evaluation.watch": (), "evaluation.final": ()}


class Preloaded:
    """Reader that repeats batches in memory."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches: Iterator[Batch] = itertools.cycle(batches)
        self.wait_seconds = 0.0

    def __next__(self) -> Batch:
        return next(self.batches)

    def on_device(self, batch: Batch) -> Batch:
        """Return the batch, which is on the device."""
        return batch


def engine(recipe: Recipe) -> Engine:
    """Return the engine of a recipe in this process, with the number of threads of the benchmark."""
    changed = recipe.replace("run.threads", torch.get_num_threads())
    host = Host(Store(f"{recipe.run.output_dir}/checkpoint"), gpu=recipe.run.gpus_per_worker > 0)
    return Engine(changed, host, None)


def text_recipe(place: str, batch: int) -> Recipe:
    """Return the recipe of SimCSE with the small encoder on sentences of Wikipedia."""
    changes = {
        "streams.text.batch_size": batch,
        "optim.text": {"lr": 1e-6},
        "run.output_dir": f"{place}/run",
        "run.num_workers": 0,
    }
    return write_inputs(simcse.demo().changed(changes))


def batches(made: Engine, stream: str, count: int) -> list[Batch]:
    """Return the first batches of a stream, on the device."""
    with made.streams as readers:
        return [readers[stream].on_device(next(readers[stream])) for _ in range(count)]


def step_of(made: Engine, readers: Any) -> Call:
    """Return a step of the engine over the batches of the readers."""
    meter = Meter(readers, made.host)

    def step() -> None:
        made.stepper(made.step, readers, meter)
        made.step += 1
        made.method.after_step(made.step)

    return step


def preloaded(made: Engine) -> dict[str, Preloaded]:
    """Return readers that repeat a few batches on the device."""
    return {name: Preloaded(batches(made, name, 8)) for name in made.recipe.streams}


def loops(made: Engine) -> dict[str, Call]:
    """Return a step of the engine, and a step of a minimal loop per update, by name."""
    readers: Any = preloaded(made)
    plain = copy.deepcopy(made.method).train()

    def one(streams: tuple[str, ...], update: UpdateOptimizer) -> None:
        losses = plain({name: next(readers[name]) for name in streams}).losses
        torch.stack([plain.loss_weights.get(name, 1.0) * loss for name, loss in losses.items()]).sum().backward()
        torch.nn.utils.clip_grad_norm_([p for group in update.optimizer.param_groups for p in group["params"]], 1.0)
        update.optimizer.step()
        update.optimizer.zero_grad(set_to_none=True)

    sides = {"engine": step_of(made, readers)}
    for update, streams in made.recipe.method.updates().items():
        optimizer = UpdateOptimizer(plain, update, made.recipe.optim[update], made.steps, "fp32")
        sides[update] = partial(one, streams, optimizer)
    return sides


def main(rounds: int = 5) -> None:
    """Print a row per target."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        changes = {"run.output_dir": f"{place}/visual", "run.num_workers": 0, **NOT_TRAINED}
        recipe = write_inputs(visualcse.demo().changed(changes))
        took = race(loops(engine(recipe)), 5 * rounds)
        alone = [text + image for text, image in zip(took["text"], took["image"], strict=True)]
        what = "VisualCSE: the engine's step / a bare text update and a bare image update"
        report("engine", what, ratios(took["engine"], alone), at_most=1.02)
        took = race(loops(engine(text_recipe(place, 64))), rounds)
        what = "SimCSE, batch 64: the engine's step / a bare loop's over batches in memory"
        report("engine", what, ratios(took["engine"], took["text"]), at_most=1.02)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
