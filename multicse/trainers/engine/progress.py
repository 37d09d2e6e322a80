"""Progress line of a run, independent of where its loop runs."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

EVERY = 15.0
"""Seconds between two lines without a terminal."""
LOOK = 0.5
"""Seconds between two updates from a worker."""


def announce(action: str) -> None:
    """Print on standard error what comes next and takes seconds, or minutes on a busy machine."""
    print(f"{action} ...", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return seconds in a readable unit: ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def render(line: dict[str, Any]) -> str:
    """Return ``step 120/512  text 0.412  image 3.2  lee-dev 47.40 (step 100)  812 samples/s  data wait 1 %  1 min left``."""
    losses = [
        f"{name.removeprefix('train/')} {value:.4g}"
        for name, value in line.items()
        if name.startswith("train/") and name.count("/") == 1
    ]
    at = f" (step {line['evaluated']})" if "evaluated" in line else ""
    scores = [
        f"{name.rpartition('/')[0].rpartition('/')[2].partition('?')[0]} {value:.2f}{at}"  # for a task on a file its name
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
        *([line["trouble"]] if line.get("trouble") else []),
    ]
    return "  ".join(parts)


class ProgressLine:
    """Progress display: one line that is rewritten on a terminal, otherwise a new line every `EVERY` seconds.

    Args:
        render: Function from a line, with its `step` and the number of all `steps`, to its text.
    """

    def __init__(self, render: Callable[[dict[str, Any]], str] = render) -> None:
        self._render = render
        self._last, self._terminal = 0.0, sys.stdout.isatty()
        self._shown: dict[str, Any] | None = None

    def show(self, line: dict[str, Any] | None) -> None:
        """Show a line, unless it is None or unchanged."""
        if line is None or line == self._shown:
            return
        self._shown = line
        done = line["step"] == line["steps"]
        if self._terminal:
            print(f"\r\033[K{self._render(line)}", end="\n" if done else "", flush=True)
        elif done or time.monotonic() - self._last >= EVERY:
            self._last = time.monotonic()
            print(self._render(line), flush=True)


class Board:
    """Latest progress line of a run and its stop request, as two keys in Ray's control service; picklable."""

    def __init__(self) -> None:
        self.name = f"multicse-{uuid4().hex}"
        self._put = 0.0

    def put(self, line: dict[str, Any]) -> None:
        """Write a line, unless one was written less than `LOOK` seconds ago. The last line of a run is always written."""
        if line["step"] == line["steps"] or time.monotonic() - self._put >= LOOK:
            self._put = time.monotonic()
            with contextlib.suppress(Exception):  # training does not depend on the line
                _ray_kv()._internal_kv_put("line", json.dumps(line), namespace=self.name)

    def get(self) -> dict[str, Any] | None:
        """Return the latest line, or None before the first one."""
        found = _ray_kv()._internal_kv_get("line", namespace=self.name)
        return json.loads(found) if found else None

    def stop(self) -> None:
        """Ask the workers to stop."""
        _ray_kv()._internal_kv_put("stop", b"1", namespace=self.name)

    def stopping(self) -> bool:
        """Return True if any process has called `stop`."""
        return bool(_ray_kv()._internal_kv_exists("stop", namespace=self.name))

    def clear(self) -> None:
        """Remove both keys."""
        with contextlib.suppress(Exception):  # the cluster is gone; the error of the run is more useful
            for key in ("line", "stop"):
                _ray_kv()._internal_kv_del(key, namespace=self.name)


def _ray_kv() -> Any:
    from ray.experimental import internal_kv  # takes seconds, which a run without workers saves

    return internal_kv
