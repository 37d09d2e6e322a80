"""Compare Ray Data and Ray Train with one process, at the usual length of a run.

    python -m benchmarks.speed.road [--methods simcse visualcse] [--steps 300] [--rounds 3] [--workers 1 2]

Every side is a command that trains the demo's small encoder on the offline shards; the sides alternate. Speed is the mean
over the log after the first `WARM` steps. The window is chosen so that a plan is at least `LENGTH` times as long as the
read-ahead, since the cost of reading is visible only after the readers have reached their limit.

In the training worker, a callback sums the processor time of all Python threads except the training loop. They hold the
interpreter lock for at most that time, so its fraction of the wall time is an upper bound.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import harmonic_mean
from typing import Any, NamedTuple

import tyro

from benchmarks.timer import ratios, report

ROOT = Path(__file__).resolve().parents[2]
THREADS = "MULTICSE_ROAD_THREADS"
"""Environment variable with the file to which `watch` writes."""
WARM = 20
"""Number of first steps that are not counted."""
LENGTH = 10
"""Minimum length of a plan relative to the read-ahead."""
READ_AHEAD = 4
"""Number of windows that two cores read ahead."""
BATCHES = {
    "visualcse": {"text": 64, "image": 48},
    "audiocse": {"text": 64, "audio": 48},
    "cyclip": {"pairs": 64},
    "simcse": {"text": 64},
}
"""Batch sizes of the streams of every pipeline's demo."""
WANTED = {"visualcse": 0.9, "audiocse": 0.9, "cyclip": 0.9, "simcse": 0.95}


class Run(NamedTuple):
    """One run of a recipe."""

    speed: float
    """Samples per second after the first steps."""
    others: float
    """Processor time of the worker's other Python threads, as a fraction of the wall time."""


def thread_seconds() -> float:
    """Return the processor time of the Python threads of this process, without the main thread and the training loop."""
    ticks, left_out = 0, {threading.main_thread().native_id, threading.get_native_id()}
    for thread in threading.enumerate():
        stat = Path(f"/proc/self/task/{thread.native_id}/stat")
        if thread.native_id not in left_out and stat.exists():
            ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


_first: list[tuple[float, float]] = []


def watch(step: int, metrics: dict[str, float], engine: Any) -> None:
    """Write the processor time of other threads relative to wall time, since the first call after `WARM` steps."""
    if step >= WARM and "time/samples_per_second" in metrics:
        _first.append((time.perf_counter(), thread_seconds()))
        (start, worked), (now, total) = _first[0], _first[-1]
        Path(os.environ[THREADS]).write_text(str((total - worked) / (now - start) if len(_first) > 1 else 0.0))


def options_of(method: str, steps: int) -> dict[str, int]:
    """Return the windows that make a plan long enough."""
    streams = BATCHES[method]
    return {f"streams.{name}.window": max(size, steps * size // (LENGTH * READ_AHEAD)) for name, size in streams.items()}


def run(method: str, steps: int, workers: int, options: dict[str, Any]) -> Run:
    """Train a demo and measure it; with 0 workers in one process without Ray."""
    with tempfile.TemporaryDirectory() as place:
        settings = {
            "run.max_steps": steps,
            "run.logging_steps": 10,
            "run.num_workers": workers,
            "run.cpus_per_worker": 1 if workers < 2 else (os.cpu_count() or 1) / (2 * workers),  # the rest is for reading
            "run.output_dir": f"{place}/run",
            "run.tracking_uri": f"sqlite:///{place}/mlflow.db",
            "run.callbacks": "benchmarks.speed.road:watch",
            "evaluation.select": None,
            "evaluation.eval_steps": 10 * steps,
            **options,
        }
        command = [sys.executable, f"pipelines/{method}.py", "demo", "--evaluation.watch", "--evaluation.final"]
        command += [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
        env = {**os.environ, THREADS: f"{place}/threads", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        with Path(place, "log").open("w+") as log:
            if subprocess.run(command, cwd=ROOT, env=env, stdout=log, stderr=log).returncode:
                log.seek(0)
                sys.exit(f"{' '.join(command)} failed:\n{log.read()[-3000:]}")
        lines = map(json.loads, Path(place, "run", "journal.jsonl").read_text().splitlines())
        found = [line for line in lines if "time/samples_per_second" in line.get("metrics", {}) and line["step"] > WARM]
        speed = harmonic_mean([line["metrics"]["time/samples_per_second"] for line in found])
        return Run(speed, float(Path(place, "threads").read_text()))


def main(
    methods: tuple[str, ...] = tuple(BATCHES), steps: int = 300, rounds: int = 3, workers: tuple[int, ...] = (1, 2)
) -> None:
    """Print a row per method and number of workers."""
    for name in methods:
        options = options_of(name, steps)
        took: dict[int, list[Run]] = {number: [] for number in (0, *workers)}
        for round_ in range(rounds):
            for number in list(took)[:: -1 if round_ % 2 else 1]:
                took[number].append(run(name, steps, number, options))
        for number in workers:
            many = f"Ray with {number} worker{'s' * (number > 1)}"
            what = f"{name}, {steps} steps: {many} / in process, samples per second"
            speeds = {side: [one.speed for one in took[side]] for side in (number, 0)}
            report("road", what, ratios(speeds[number], speeds[0]), at_least=WANTED[name] if number == 1 else 0.9)
            what = f"{name}, {many}: processor time of a worker's other Python threads / wall time"
            report("road", what, [one.others for one in took[number]], at_most=0.05)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
