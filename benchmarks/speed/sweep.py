"""What a sweep costs beside its steps.

    python -m benchmarks.speed.sweep [--pipeline simcse] [--trials 8] [--steps 200]

The time of a sweep until its last trial's end, from the command on, over that of the loops of the same trials one after the
other in this process, which has all cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from benchmarks.timer import Target
from multicse.pipelines import registry
from multicse.pipelines.cli import prepare
from multicse.trainers.engine.checkpoint import Store
from multicse.trainers.engine.hosts import LocalHost
from multicse.trainers.engine.launch import resolve
from multicse.trainers.engine.loop import Engine


class Ran(NamedTuple):
    """A sweep that was run: its trials as in trials.json, and seconds from its command to its first trial's end, to its last
    one's, and to its own."""

    trials: list[dict[str, Any]]
    first: float
    last: float
    whole: float


def sweep(place: Path, pipeline: str, trials: int, *options: str) -> Ran:
    """Run a sweep of demos in an empty folder, with its own database."""
    command = [sys.executable, "-m", "multicse.pipelines.sweep", pipeline, "--trials", str(trials), *options]
    command += ["--output", str(place), "--run.tracking_uri", f"sqlite:///{place}/mlflow.db"]
    began = time.time()
    with (place / "log.txt").open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
    whole = time.time() - began
    rows = json.loads((place / "trials.json").read_text())
    ends = [row["ended_at"] - began for row in rows]
    return Ran(rows, min(ends), max(ends), whole)


def in_turn(pipeline: str, trials: list[dict[str, Any]], settings: dict[str, Any]) -> float:
    """Seconds of the loops of these trials, their evaluations included, one after the other in this process."""
    seconds = 0.0
    for trial in trials:
        changes = {**settings, **trial["changes"], "evaluation.final": (), "run.checkpoint_every": None}
        recipe = resolve(registry.load(pipeline).RECIPES["demo"]()).changed(changes)
        prepare(recipe)
        with tempfile.TemporaryDirectory() as place:
            seconds += Engine(recipe.replace("run.output", place), LocalHost(Store(place)), None).run()["train_seconds"]
    return seconds


def main(pipeline: str = "simcse", trials: int = 8, steps: int = 200, rounds: int = 1, searcher: str = "random") -> None:
    """Print a row."""
    settings = {"run.max_steps": steps, "evaluation.every": steps // 2}
    given = [part for path, value in settings.items() for part in (f"--{path}", str(value))]
    measured, why = [], ""
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as place:
            ran = sweep(Path(place), pipeline, trials, "--scheduler", "none", "--searcher", searcher, *given)
        alone = in_turn(pipeline, ran.trials, settings)
        why = f"{ran.last:.0f} s to the last trial's end, of it {ran.first:.0f} s to the first one's; alone {alone:.0f} s"
        print(f"{len(ran.trials)} trials: {why}; {ran.whole:.0f} s in all")
        measured.append(ran.last / alone)
    what = f"{len(ran.trials)} trials of {steps} steps: sweep / their loops one after the other in one process"
    Target(area="sweeps", what=what, at_most=1.1, measured=measured, why=why).report()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
