"""What a user waits for: ``--help``, a mistyped option, the first step of a run, and the whole demo.

    python -m benchmarks.speed.start [--rounds 3] [--demo]

Seconds of the clock from the command on, each in a new process, with an own empty MLflow database. Memory is that of the
command and of all that it has started, as the system counts pages that processes share.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import tyro

from benchmarks.timer import Target

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str) -> tuple[float, float, float]:
    """Seconds of ``python COMMAND`` in an own folder's database, seconds until its first step, and its peak in megabytes.

    Without a first step, which is looked for in the journal, the second number is the first one again.
    """
    with tempfile.TemporaryDirectory() as place:
        if "--help" not in command:
            command += ("--run.output", f"{place}/run", "--run.tracking_uri", f"sqlite:///{place}/mlflow.db")
        began, peak = time.time(), [0.0]
        log = subprocess.DEVNULL
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=log, stderr=log)
        watcher = threading.Thread(target=_watch, args=(process, peak))
        watcher.start()
        process.wait()
        ended = time.time()
        watcher.join()
        journal, first = Path(place) / "run" / "journal.jsonl", ended
        if journal.exists():
            lines = map(json.loads, journal.read_text().splitlines())
            first = next(line["time"] / 1000 for line in lines if line.get("step", 0) > 0)
        return ended - began, first - began, peak[0]


def _watch(process: subprocess.Popen[bytes], peak: list[float]) -> None:
    """Keep the most memory of a process and its descendants, looked at twice a second."""
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            every = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            peak[0] = max(peak[0], sum(map(_megabytes, every)))
        time.sleep(0.5)


def _megabytes(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        memory = process.memory_info()
        return float(memory.rss - getattr(memory, "shared", 0)) / 2**20
    return 0.0


def main(rounds: int = 3, demo: bool = False) -> None:
    """Print a row a target. `demo`: run the demo too, which takes two minutes."""
    smoke = ("pipelines/visualcse.py", "smoke", "--run.log_every", "1")
    waits = {
        "--help": (1.5, ("pipelines/visualcse.py", "--help")),
        "a mistyped option": (2.0, ("pipelines/visualcse.py", "demo", "--run.wrokers", "1")),
        "first step in process": (3.0, (*smoke, "--run.workers", "0")),
        "first step through Ray": (10.0, smoke),
        **({"the demo": (150.0, ("pipelines/visualcse.py", "demo"))} if demo else {}),
    }
    os.environ["HF_HUB_OFFLINE"] = "1"
    run(*smoke, "--run.workers", "0")  # makes the offline shards, and the system has read the libraries once
    took: dict[str, list[tuple[float, float, float]]] = {name: [] for name in waits}
    for turn in range(rounds):
        for name, (_, command) in waits.items():
            if name != "the demo" or turn == 0:
                took[name].append(run(*command))
    for name, (most, _) in waits.items():
        seconds = [first if "step" in name else whole for whole, first, _ in took[name]]
        megabytes = max(peak for _, _, peak in took[name])
        Target(area="start", what=name, at_most=most, unit="s", measured=seconds, peak_mb={"all": megabytes}).report()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
