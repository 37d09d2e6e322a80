"""Compare Ray Data and Ray Train with one process, at the usual length of a run.

    python -m benchmarks.speed.road [--methods simcse visualcse] [--turns 8] [--seconds 10] [--workers 1 2]

Every side is a command that trains the demo's small encoder on the offline shards. All sides run at the same time, but only
one of them is not suspended, and they take turns of some seconds: the speed of a machine changes within minutes. The windows
are so small that the readers reach their read-ahead before the first turn; until then, the cost of reading is not visible.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import psutil
import tyro

from benchmarks.timer import ratios, report

ROOT = Path(__file__).resolve().parents[2]
WARM = 100
"""Steps of every side before its first turn; the read-ahead is 40 steps."""
WINDOW = 10
"""Batches of a window, of which two cores read four ahead."""
EVERY = 2
"""Steps between two records of the speed."""
SETTLE = 2.0
"""Seconds at the start of every turn that are not counted."""
BATCHES = {
    "visualcse": {"text": 64, "image": 48},
    "audiocse": {"text": 64, "audio": 48},
    "cyclip": {"pairs": 64},
    "simcse": {"text": 64},
}
"""Batch sizes of the streams of every pipeline's demo."""
WANTED = {"visualcse": 0.9, "audiocse": 0.9, "cyclip": 0.9, "simcse": 0.95}


class Side:
    """Training command, which is suspended except in its turns.

    Args:
        method: Pipeline.
        workers: Number of Ray's training workers, 0 for one process without Ray.
        folder: Empty folder for its files.
    """

    def __init__(self, method: str, workers: int, folder: Path) -> None:
        settings: dict[str, Any] = {
            "run.max_steps": 10**6,
            "run.logging_steps": EVERY,
            "run.num_workers": workers,
            "run.cpus_per_worker": 1 if workers < 2 else (os.cpu_count() or 1) / (2 * workers),  # the rest is for reading
            "run.output_dir": folder / "run",
            "run.tracking_uri": f"sqlite:///{folder}/mlflow.db",
            "evaluation.select": None,
            "evaluation.eval_steps": 10**6,
            **{f"streams.{name}.window": WINDOW * size for name, size in BATCHES[method].items()},
        }
        command = [sys.executable, f"pipelines/{method}.py", "demo", "--evaluation.watch", "--evaluation.final"]
        command += [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        self._journal, self._log = folder / "run" / "journal.jsonl", folder / "log"
        with self._log.open("wb") as log:
            self._command = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)

    def wait(self, steps: int) -> None:
        """Wait for a step, then suspend the command."""
        while len(self._speeds()) * EVERY < steps:
            if self._command.poll() is not None:
                sys.exit(f"{self._command.args!r} failed:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.5)
        self._send(signal.SIGSTOP)

    def turn(self, seconds: float) -> float:
        """Continue the command for some seconds, and return its mean speed in samples per second."""
        self._send(signal.SIGCONT)
        time.sleep(SETTLE)
        before = len(self._speeds()) + 2  # the record that is being written, and the one that began before
        time.sleep(seconds)
        while len(self._speeds()) <= before and self._command.poll() is None:  # the machine is slow
            time.sleep(0.5)
        speeds = self._speeds()[before:]
        self._send(signal.SIGSTOP)
        return harmonic_mean(speeds)

    def kill(self) -> None:
        """End the command and all its processes."""
        self._send(signal.SIGKILL)
        self._command.wait()

    def _speeds(self) -> list[float]:
        lines = self._journal.read_text().splitlines()[1:-1] if self._journal.exists() else []  # the last may be incomplete
        found = (json.loads(line)["metrics"].get("time/samples_per_second") for line in lines)
        return [speed for speed in found if speed is not None]

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            driver = psutil.Process(self._command.pid)
            for process in [driver, *driver.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)


def measure(method: str, workers: Sequence[int], turns: int, seconds: float) -> Mapping[int, list[float]]:
    """Return the samples per second of a method's demo in every turn, by the number of workers."""
    sides: dict[int, Side] = {}
    with tempfile.TemporaryDirectory() as place:
        try:
            for number in workers:
                folder = Path(place, str(number))
                folder.mkdir()
                sides[number] = Side(method, number, folder)
                sides[number].wait(WARM)
            speeds: dict[int, list[float]] = {number: [] for number in workers}
            for turn in range(turns):
                for number in workers[:: -1 if turn % 2 else 1]:
                    speeds[number].append(sides[number].turn(seconds))
            return speeds
        finally:
            for side in sides.values():
                side.kill()


def main(
    methods: tuple[str, ...] = tuple(BATCHES), turns: int = 8, seconds: float = 10, workers: tuple[int, ...] = (1, 2)
) -> None:
    """Print a row per method and number of workers."""
    for name in methods:
        speeds = measure(name, (0, *workers), turns, seconds)
        for number in workers:
            what = f"{name}: Ray with {number} worker{'s' * (number > 1)} / in process, samples per second"
            report("road", what, ratios(speeds[number], speeds[0]), at_least=WANTED[name] if number == 1 else 0.9)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
