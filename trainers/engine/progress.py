"""One calm line that says how a run goes, wherever its loop runs."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

EVERY = 15.0
"""Seconds between two lines where there is no terminal."""


def duration(seconds: float) -> str:
    """Seconds as people say them: ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def render(line: dict[str, Any]) -> str:
    """``step 120/512  text 0.412  image 3.2  lee-dev 47.40  812 samples/s  data wait 1 %  1 min left``."""
    losses = [
        f"{name.removeprefix('train/')} {value:.4g}"
        for name, value in line.items()
        if name.startswith("train/") and name.count("/") == 1
    ]
    scores = [
        f"{name.rpartition('/')[0].rpartition('/')[2].partition('?')[0]} {value:.2f}"  # of a task on a file its name
        for name, value in line.items()
        if name.startswith("eval/")
    ]
    wait = sum(value for name, value in line.items() if name.endswith("/wait_share"))
    parts = [
        f"step {line['step']}/{line['steps']}",
        *losses,
        *scores,
        f"{line['time/samples_per_second']:.0f} samples/s",
        f"data wait {100 * wait:.0f} %",
        f"{duration(line['left'])} left",
    ]
    return "  ".join(parts)


class ProgressLine:
    """Rewrites one line on a terminal; elsewhere prints one every `EVERY` seconds and at the end."""

    def __init__(self) -> None:
        self._last, self._terminal = 0.0, sys.stdout.isatty()

    def show(self, line: dict[str, Any]) -> None:
        done = line["step"] == line["steps"]
        if self._terminal:
            print(f"\r\033[K{render(line)}", end="\n" if done else "", flush=True)
        elif done or time.monotonic() - self._last >= EVERY:
            self._last = time.monotonic()
            print(render(line), flush=True)


class Board:
    """A tiny actor with the latest line, which workers on any node write, and a thread of the driver that shows it.

    Workers ask it whether to stop.
    """

    def __init__(self) -> None:
        import ray

        class Latest:
            def __init__(self) -> None:
                self.line: dict[str, Any] | None = None
                self.asked = False

            def put(self, line: dict[str, Any]) -> None:
                self.line = line

            def get(self) -> dict[str, Any] | None:
                return self.line

            def stop(self) -> None:
                self.asked = True

            def stopping(self) -> bool:
                return self.asked

        self.actor: Any = ray.remote(num_cpus=0)(Latest).remote()
        self._line, self._done = ProgressLine(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        import ray

        shown = None
        while True:
            last = self._done.wait(0.5)
            try:
                line = ray.get(self.actor.get.remote(), timeout=10)
            except Exception:  # the cluster is going away; the run's own error tells why
                return
            if line is not None and line != shown:
                self._line.show(line)
                shown = line
            if last:
                return

    def close(self) -> None:
        """Show the last line and stop."""
        import ray

        self._done.set()
        self._thread.join(timeout=3)
        ray.kill(self.actor)
