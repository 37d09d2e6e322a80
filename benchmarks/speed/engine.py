"""What the engine costs: its steps against a bare loop, and what a run does between its steps.

    python -m benchmarks.speed.engine [--model DIR] [--rounds 5]

Batches are in memory. The bare loop has the same method, optimizers and clipping, and nothing else. What comes between the
steps is measured by itself and counted as often as it comes: a line of the log every 10 steps, through to MLflow, a
checkpoint every 100, STS-B dev every 125, as in the paper.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from benchmarks.timer import Call, Target, clock, datasets, device, minilm, note, race, ratios
from multicse.data.streams.base import Batch
from multicse.models.text_encoder import TextEncoder
from multicse.pipelines import simcse, visualcse
from multicse.pipelines.cli import prepare
from multicse.trainers.engine.checkpoint import Store
from multicse.trainers.engine.hosts import Host, LocalHost
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.optim import TurnOptimizer
from multicse.trainers.engine.step import Window
from multicse.trainers.engine.tracking import Tracker, open_run
from multicse.trainers.recipe import Recipe

EVERY = {"log": 10, "checkpoint": 100, "evaluation": 125}
"""Steps between two of each."""
BETWEEN = Target(area="engine", what="log, checkpoints and evaluation / the steps of SimCSE", at_most=0.04)
TEMPERATURE, LR = 0.05, 3e-5
"""Of a bare loop."""
NOT_TRAINED: dict[str, Any] = {"evaluation.select": None, "evaluation.watch": (), "evaluation.final": ()}


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

    def close(self) -> None:
        pass


def engine(recipe: Recipe, log: Tracker | None = None, host: Host | None = None) -> Engine:
    """The engine of a recipe in this process, with as many threads as the benchmark has."""
    changed = recipe.replace("run.threads", torch.get_num_threads())
    return Engine(changed, host or LocalHost(Store(f"{recipe.run.output}/checkpoint")), log)


def text_recipe(model: Path, place: str, batch: int) -> Recipe:
    """SimCSE of that model on sentences of Wikipedia, at most 32 tokens."""
    changes = {
        "encoder.path": str(model),
        "streams.text.batch_size": batch,
        "optim.text": {"lr": 1e-6},
        "run.output": f"{place}/run",
        "run.workers": 0,
    }
    recipe = simcse.demo().changed(changes)
    prepare(recipe)
    return recipe


def batches(made: Engine, stream: str, count: int) -> list[Batch]:
    """The first batches of a stream, as a step takes them."""
    readers = made._readers()
    found = [readers[stream].on_device(next(readers[stream]), made.host.device, step) for step in range(count)]
    for reader in readers.values():
        reader.close()
    return found


def loops(made: Engine) -> tuple[dict[str, Call], Any, Window]:
    """A step of the engine, and of a bare loop of every turn; the engine's readers and window."""
    readers: Any = {name: Preloaded(batches(made, name, 8)) for name in made.recipe.streams}
    made.window = window = Window(readers)
    plain = copy.deepcopy(made.method).train()

    def ours() -> None:
        made.stepper(made.step, readers, window)
        made.step += 1
        made.method.after_step(made.step)

    def bare(streams: tuple[str, ...], update: TurnOptimizer) -> None:
        losses = plain({name: next(readers[name]) for name in streams}).losses
        torch.stack([plain.loss_weights.get(name, 1.0) * loss for name, loss in losses.items()]).sum().backward()
        torch.nn.utils.clip_grad_norm_([p for group in update.optimizer.param_groups for p in group["params"]], 1.0)
        update.optimizer.step()
        update.schedule.step()
        update.optimizer.zero_grad(set_to_none=True)

    sides: dict[str, Call] = {"engine": ours}
    for turn, streams in made.recipe.method.turns().items():
        update = TurnOptimizer(plain, turn, made.recipe.optim[turn], made.steps, "fp32")
        sides[turn] = partial(bare, streams, update)
    return sides, readers, window


def bare(folder: str, ready: list[dict[str, Tensor]]) -> Call:
    """A loop over padded tokens, both views in one forward."""
    model = TextEncoder.from_pretrained(folder).model.train()
    model.config._attn_implementation = "sdpa"
    adam = torch.optim.AdamW(model.parameters(), LR, fused=True)

    def block() -> None:
        for tokens in ready:
            states, mask = model(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
            z = F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1).unflatten(0, (-1, 2))
            logits = z[:, 0] @ z[:, 1].T / TEMPERATURE
            F.cross_entropy(logits, torch.arange(len(logits))).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            adam.zero_grad()

    return block


def between(made: Engine, readers: Any, window: Window) -> dict[str, float]:
    """Seconds of an evaluation, of a checkpoint, and of a line of the log until MLflow has it."""
    assert isinstance(made.log, Tracker)
    lines, stamps = 20, [clock()]
    made._evaluate()
    stamps.append(clock())
    made._save(readers, last=True)
    stamps.append(clock())
    for _ in range(lines):
        made.step += 1
        made._report(window, readers)
    made.log.close()
    stamps.append(clock())
    seconds = [after - before for before, after in itertools.pairwise(stamps)]
    return {"evaluation": seconds[0], "checkpoint": seconds[1], "log": seconds[2] / lines}


def text_steps(model: Path, place: str, rounds: int) -> None:
    """SimCSE: two rows."""
    recipe = text_recipe(model, place, 64)
    data = datasets("sts", rows=[BETWEEN])
    recipe = recipe.changed({"evaluation": {"data": str(data), "select": "stsb-dev"}})
    handle = open_run(f"sqlite:///{place}/mlflow.db", "speed", "engine", {})
    made = engine(recipe, Tracker(Path(place) / "journal.jsonl", handle.uri, handle.run_id))
    sides, readers, window = loops(made)
    took = race(sides, rounds)
    what = "SimCSE, batch 64: the engine's step / a bare loop's over batches in memory"
    Target(area="engine", what=what, at_most=1.02, measured=ratios(took["engine"], took["text"])).report()
    step = median(took["engine"])
    shares = {name: seconds / EVERY[name] / step for name, seconds in between(made, readers, window).items()}
    why = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    replace(BETWEEN, measured=[sum(shares.values())], why=why).report()
    note("engine", f"Between SimCSE's steps, as shares of their time: {why}.")


def picture_steps(place: str, rounds: int) -> None:
    """VisualCSE on the small encoder: a row."""
    recipe = visualcse.demo().changed({"run.output": f"{place}/visual", "run.workers": 0, **NOT_TRAINED})
    prepare(recipe)
    took = race(loops(engine(recipe))[0], rounds)
    alone = [text + image for text, image in zip(took["text"], took["image"], strict=True)]
    what = "VisualCSE: the engine's step / a bare text turn and a bare image turn"
    Target(area="engine", what=what, at_most=1.02, measured=ratios(took["engine"], alone)).report()


def main(model: Path | None = None, rounds: int = 5) -> None:
    """Print a row per target."""
    device()
    encoder = model or minilm()
    with tempfile.TemporaryDirectory() as place:
        picture_steps(place, 5 * rounds)
        text_steps(encoder, place, rounds)  # the last, since it needs data


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
