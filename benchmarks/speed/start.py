"""What a user waits for: ``--help``, a mistyped option, the first step of a run, and the whole demo.

    python -m benchmarks.speed.start [--rounds 3] [--demo]

Seconds of the clock from the command on, each in a new process, with an own empty MLflow database. Memory is that of the
command and of all that it has started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import tyro

from benchmarks.timer import Target, watched

ROOT = Path(__file__).resolve().parents[2]
WHY = {
    "--help": "it shows the settings of a recipe, which stand beside the modules of their paper: torch alone takes 2 s",
    "first step in process": "importing torch and transformers is most of it, table below",
    "first step through Ray": "driver and worker import torch, transformers and MLflow on the same two cores, table below",
    "the demo": "200 steps and 10 evaluations on two cores, while the driver, Ray and readers take their share",
}


class Ran(NamedTuple):
    """A command that was run."""

    seconds: float
    first: float
    """Until the first step of its run, if it has a run."""
    peak_mb: float
    speeds: list[float]
    """Samples a second by the clock, of every line of the run's log."""


def run(*command: str) -> Ran:
    """``python COMMAND`` with an output folder and a database of its own."""
    with tempfile.TemporaryDirectory() as place:
        if "--help" not in command:
            command += ("--run.output", f"{place}/run", "--run.tracking_uri", f"sqlite:///{place}/mlflow.db")
        began = time.time()
        log = subprocess.DEVNULL
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=log, stderr=log)
        with watched(process.pid, share=0.01) as peak:
            process.wait()
        ended = time.time()
        journal = Path(place) / "run" / "journal.jsonl"
        lines = map(json.loads, journal.read_text().splitlines()) if journal.exists() else ()
        steps = [line for line in lines if "time/samples_per_second" in line.get("metrics", {})]
        speeds = [line["metrics"]["time/samples_per_second"] for line in steps]
        return Ran(ended - began, (steps[0]["time"] / 1000 if steps else ended) - began, peak[0], speeds)


def loaded(*names: str) -> float:
    """How many of these packages importing a paper's module and its pipeline loads."""
    code = f"import sys; from multicse.pipelines import visualcse; print(sum(name in sys.modules for name in {names}))"
    return float(subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True).stdout)


def main(rounds: int = 3, demo: bool = False) -> None:
    """Print a row a target. `demo`: run the demo too, which takes minutes."""
    smoke = ("pipelines/visualcse.py", "smoke", "--run.log_every", "1")
    waits = {
        "--help": (1.5, ("pipelines/visualcse.py", "--help")),
        "a mistyped option": (2.0, ("pipelines/visualcse.py", "demo", "--run.wrokers", "1")),
        "first step in process": (3.0, (*smoke, "--run.workers", "0")),
        "first step through Ray": (10.0, smoke),
        "the demo": (150.0, ("pipelines/visualcse.py", "demo")),
    }
    os.environ["HF_HUB_OFFLINE"] = "1"
    run(*smoke, "--run.workers", "0")  # makes the offline shards, and the system has read the libraries once
    took: dict[str, list[Ran]] = {name: [] for name in waits}
    for turn in range(rounds):
        for name, (_, command) in waits.items():
            if name != "the demo" or (demo and turn == 0):
                took[name].append(run(*command))
    for name, (most, _) in waits.items():
        seconds = [ran.first if "step" in name else ran.seconds for ran in took[name]]
        peaks = {"all": max(ran.peak_mb for ran in took[name])} if took[name] else {}
        why = WHY.get(name, WHY["--help"]) if took[name] else "minutes: --demo"
        Target(area="start", what=name, at_most=most, unit="s", measured=seconds, peak_mb=peaks, why=why).report()
    what = "of Ray and MLflow, what importing a paper and its pipeline loads"
    Target(area="start", what=what, at_most=0, measured=[loaded("ray", "mlflow")]).report()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
