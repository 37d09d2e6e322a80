"""Memory, file descriptors and threads of every process of a long run, per thousand steps.

    python -m benchmarks.soak [--method visualcse] [--workers 0 1] [--steps 20000] [--most 1.0] [--smaller 8]

A demo trains, evaluates and saves checkpoints, in this process or through Ray. Every some hundred steps each of its
processes is measured: anonymous memory (its own, ``Pss_Anon``), shared memory, open files and threads. The slopes are those
of the second half of a process's life, in which caches are full: Ray replaces processes that execute tasks. The command
fails if one of anonymous memory is above ``--most`` MB per thousand steps.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import psutil
import tyro
from scipy import stats

from benchmarks.timer import machine
from multicse import load_recipe

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("anonymous MB", "shared MB", "files", "threads")
POINTS = 60
"""Measurements of a run."""

Measured = dict[str, list[tuple[int, tuple[float, ...]]]]
"""By process its steps, with the values of `COLUMNS`."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the command."""

    method: str = "visualcse"
    """Pipeline whose demo runs."""
    workers: tuple[int, ...] = (0, 1)
    """Numbers of Ray's training workers, 0 for one process without Ray."""
    steps: int = 20_000
    most: float = 1.0
    """Highest slope of anonymous memory, in MB per thousand steps, of any process."""
    smaller: int | None = None
    """Samples per batch of every stream, for as many steps in less time. If None, as in the demo."""


def role(process: psutil.Process) -> str:
    """Return a name of a process that says what it does: ``ray::RayTrainWorker``, ``raylet``, ``visualcse.py``."""
    words = process.cmdline()
    if not words:
        return process.name()
    if words[0].startswith("ray::"):
        return words[0].partition("(")[0].partition(".")[0]
    script = next((word for word in words[1:] if word.endswith(".py")), words[0])
    return Path(script).name


def values(process: psutil.Process) -> tuple[float, ...]:
    """Return the values of `COLUMNS`."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    found = [int(re.findall(rf"^{name}:\s+(\d+)", rollup, re.MULTILINE)[0]) / 1024 for name in ("Pss_Anon", "Pss_Shmem")]
    return (*found, process.num_fds(), process.num_threads())


def last_step(journal: Path) -> int:
    """Return the last complete step of a journal, 0 before the first."""
    lines = journal.read_bytes().splitlines()[1:-1] if journal.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def watch(method: str, workers: int, steps: int, smaller: int | None, folder: Path) -> Measured:
    """Train a demo and return the second half of every process that lives for a third of the second half of the run."""
    command = [sys.executable, f"pipelines/{method}.py", "demo"]
    settings = {
        "run.max_steps": steps,
        "run.num_workers": workers,
        "run.logging_steps": max(1, steps // 1000),
        "run.save_steps": steps // 10,
        "run.output_dir": folder / "run",
        "run.tracking_uri": f"sqlite:///{folder}/mlflow.db",
        "evaluation.eval_steps": steps // 10,
    }
    if smaller:
        recipe = load_recipe(f"{method}/demo")
        settings |= {f"streams.{name}.batch_size": smaller for name in recipe.streams}
    command += [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    found: dict[tuple[int, str], list[tuple[int, tuple[float, ...]]]] = defaultdict(list)
    reached = 0
    with (folder / "log").open("wb") as log, subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log) as run:
        while run.poll() is None:
            step = last_step(folder / "run" / "journal.jsonl")
            if step >= reached + max(1, steps // POINTS):
                reached = step
                for process in [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]:
                    try:
                        found[process.pid, role(process)].append((step, values(process)))
                    except (psutil.Error, OSError):
                        continue  # ended meanwhile
            time.sleep(0.2)
    if run.returncode:
        sys.exit(f"{command} failed:\n{(folder / 'log').read_text()[-3000:]}")
    lasting: Measured = {}
    for (_, name), points in found.items():
        if len([step for step, _ in points if step >= steps // 2]) >= POINTS // 6:
            number = sum(other.partition(" ")[0] == name for other in lasting)
            middle = (points[0][0] + points[-1][0]) / 2
            lasting[f"{name} {number + 1}" if number else name] = [point for point in points if point[0] >= middle]
    return lasting


def slopes(points: list[tuple[int, tuple[float, ...]]]) -> list[float]:
    """Return the changes of the values of `COLUMNS` per thousand steps."""
    steps = [step for step, _ in points]
    return [1000 * float(stats.linregress(steps, column).slope) for column in zip(*(row for _, row in points), strict=True)]


def main(arguments: Arguments) -> int:
    """Print a table for each number of workers, and return 1 if memory grows."""
    grows = False
    print(machine())
    for workers in arguments.workers:
        with tempfile.TemporaryDirectory() as folder:
            found = watch(arguments.method, workers, arguments.steps, arguments.smaller, Path(folder))
        place = f"through Ray, {workers} workers" if workers else "in process"
        print(f"\n{arguments.method}, {place}, {arguments.steps:,} steps; slopes per 1,000 steps\n")
        print(f"| process | at the end: {' | '.join(COLUMNS)} | {' | '.join(f'slope, {name}' for name in COLUMNS)} |")
        print("|---|" + "---:|" * (2 * len(COLUMNS)))
        for name, points in sorted(found.items(), key=lambda one: -one[1][-1][1][0]):
            change = slopes(points)
            grows |= change[0] > arguments.most
            cells = [f"{value:.0f}" for value in points[-1][1]] + [f"{value:+.2f}" for value in change]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return int(grows)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Arguments, description=__doc__)))
