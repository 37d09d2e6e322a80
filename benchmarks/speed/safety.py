"""What it costs that a run can die: the demo's steps with checkpoints, hashes, locks and a watchdog, and without.

    python -m benchmarks.speed.safety [--rounds 5]

VisualCSE's demo in this process, its fifty steps up to the first checkpoint. Neither side evaluates, which would only hide
the rest.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from unittest.mock import MagicMock, patch

import tyro

from benchmarks.timer import Target, device, race, ratios, show
from multicse.data import shards
from multicse.pipelines import visualcse
from multicse.pipelines.cli import prepare
from multicse.trainers.engine import checkpoint
from multicse.trainers.engine.checkpoint import Store
from multicse.trainers.engine.hosts import LocalHost
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.output import DRIVER, WRITER, held
from multicse.trainers.engine.stop import Stop
from multicse.trainers.recipe import Recipe


class Steps(Engine):
    """Of a run its steps; the weights after the last are the best, as they are kept beside those of a checkpoint."""

    def _evaluate(self) -> bool:
        self.best = checkpoint.weights_of(self.method)
        return True


def safe(recipe: Recipe) -> None:
    """As a first run goes, which hashes its shards."""
    shards._verified.cache_clear()
    with contextlib.ExitStack() as around:
        place = Path(around.enter_context(tempfile.TemporaryDirectory()))
        around.enter_context(patch.dict("os.environ", MULTICSE_CACHE=f"{place}/cache"))
        for lock in (DRIVER, WRITER):
            around.enter_context(held(place, name=lock))
        stop = around.enter_context(Stop())
        around.enter_context(stop.patient())
        Steps(recipe, LocalHost(Store(f"{place}/checkpoint"), lambda: stop.asked is not None), None).run()


def bare(recipe: Recipe) -> None:
    """Nothing is kept, checked, locked or watched."""
    with contextlib.ExitStack() as without:
        without.enter_context(patch.object(Engine, "_save"))
        without.enter_context(patch("multicse.trainers.engine.loop.Watchdog", MagicMock()))
        without.enter_context(patch("multicse.data.shards.verify_shard", return_value=None))
        Steps(recipe, LocalHost(Store("nowhere")), None).run()


def main(rounds: int = 5) -> None:
    """Print both sides and the row of the table of targets."""
    on = device()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        recipe = visualcse.demo()
        prepare(recipe)
        steps = recipe.evaluation.every
        changes = {"run.max_steps": steps, "run.threads": 1, "evaluation.final": (), "evaluation.watch": ()}
        recipe = recipe.changed(changes)
        took = race({"safe": lambda: safe(recipe), "bare": lambda: bare(recipe)}, rounds)
    show(f"{steps} steps of {recipe.name} and a checkpoint, on {on}", took, steps, ours="safe")
    Target(
        area="reliability",
        what=f"{recipe.name}, {steps} steps and a checkpoint: with all that makes it go on / without, time",
        at_most=1.02,
        measured=ratios(took["safe"], took["bare"]),
    ).report()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
