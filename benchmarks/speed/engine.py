"""What the engine costs: its steps against a bare loop over the same batches, and what a run does between its steps.

    python -m benchmarks.speed.engine [--model DIR] [--batch 64] [--rounds 8] [--steps 2]

SimCSE on batches in memory. The bare loop has the same method, optimizer and clipping, and nothing else. What comes between
the steps is measured by itself and counted as often as it comes: a line of the log every 10 steps, through to MLflow, a
checkpoint every 100, STS-B dev every 125, as in the paper.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
import tyro

from benchmarks.speed.sts import minilm
from benchmarks.timer import clock, datasets, device, race, ratio, show
from data.batch import Batch
from pipelines import parts, simcse
from pipelines.cli import prepare
from trainers.engine.hosts import LocalHost
from trainers.engine.loop import Engine
from trainers.engine.optim import TurnOptimizer
from trainers.engine.store import Store
from trainers.engine.tracker import Tracker
from trainers.engine.tracking import open_run
from trainers.engine.window import Window
from trainers.recipe import Recipe

EVERY = {"log": 10, "checkpoint": 100, "evaluation": 125}
"""Steps between two of each."""


class Preloaded:
    """A reader of batches that are in memory, again and again."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches: Iterator[Batch] = itertools.cycle(batches)
        self.wait_seconds, self.position = 0.0, 0
        self.skipped: list[tuple[str, str]] = []

    def __next__(self) -> Batch:
        return next(self.batches)

    def on_device(self, batch: Batch, on: torch.device, step: int) -> Batch:
        return batch.to(on)


def engine(recipe: Recipe, log: Tracker | None = None) -> Engine:
    """The engine of a recipe in this process, with as many threads as the benchmark has."""
    changed = recipe.replace("run.threads", torch.get_num_threads())
    return Engine(changed, LocalHost(Store(f"{recipe.run.output}/checkpoint")), log)


def text_recipe(model: Path, place: str, batch: int) -> Recipe:
    """SimCSE of that model on sentences of Wikipedia, at most 32 tokens."""
    recipe = parts.changed(
        simcse.demo(),
        {
            "encoder.path": str(model),
            "streams.text.batch_size": batch,
            "streams.text.max_length": 32,
            "optim.text": {"lr": 1e-6},
            "run.output": f"{place}/run",
            "run.workers": 0,
        },
    )
    prepare(recipe)
    return recipe


def batches(made: Engine, stream: str, count: int) -> list[Batch]:
    """The first batches of a stream."""
    reader = made._readers()[stream]
    found = [next(reader) for _ in range(count)]
    reader.close()
    return found


def between(made: Engine, readers: Any, window: Window) -> dict[str, float]:
    """Seconds of an evaluation and of a checkpoint, each the better of two, and of a line of the log."""
    took: dict[str, list[float]] = {"evaluation": [], "checkpoint": []}
    for name, call in {"evaluation": made._evaluate, "checkpoint": lambda: made._save(readers, last=True)}.items():
        for _ in range(2):
            began = clock()
            call()
            took[name].append(clock() - began)
    lines = 20
    began = clock()
    for _ in range(lines):
        made.step += 1
        made._report(window, readers)
    assert isinstance(made.log, Tracker)
    made.log.close()  # when MLflow has them all
    return {name: min(seconds) for name, seconds in took.items()} | {"log": (clock() - began) / lines}


def main(model: Path | None = None, batch: int = 64, rounds: int = 8, steps: int = 2) -> None:
    """Print the table, and the shares of what comes between."""
    on = device()
    data = str(datasets("sts"))
    with tempfile.TemporaryDirectory() as place:
        recipe = text_recipe(model or minilm(), place, batch)
        recipe = parts.changed(recipe, {"evaluation": {"data": data, "select": "stsb-dev"}})
        run = open_run(f"sqlite:///{place}/mlflow.db", "speed", "engine", {})
        made = engine(recipe, Tracker(Path(place) / "journal.jsonl", run.uri, run.run_id))
        readers: Any = {"text": Preloaded(batches(made, "text", 8))}
        plain = copy.deepcopy(made.method).train()
        own = itertools.cycle([next(readers["text"]).to(on) for _ in range(8)])
        update = TurnOptimizer(plain, "text", recipe.optim["text"], made.steps, recipe.run.precision)
        parameters = [p for p in plain.parameters() if p.requires_grad]
        window = Window(readers)

        def bare() -> None:
            for _ in range(steps):
                plain({"text": next(own)}).losses["text"].backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                update.optimizer.step()
                update.schedule.step()
                update.optimizer.zero_grad(set_to_none=True)

        def ours() -> None:
            for _ in range(steps):
                made.stepper(made.step, readers, window)
                made.step += 1
                made.method.after_step(made.step)

        took = race({"engine": ours, "bare loop": bare}, rounds)
        show(f"SimCSE, {batch} sentences a step, on {on}", took, steps * batch, ours="engine")
        print(f"\nThe engine's steps take {100 * (ratio(took['engine'], took['bare loop']) - 1):+.1f} %.")
        one = median(took["engine"]) / steps
        shares = {name: seconds / EVERY[name] / one for name, seconds in between(made, readers, window).items()}
        told = ", ".join(f"{name} {100 * share:.2f} %" for name, share in shares.items())
        print(f"Between the steps: {told}; together {100 * sum(shares.values()):.1f} % of the steps' time.")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
