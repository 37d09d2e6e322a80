"""The one timer of all benchmarks: sides that take turns, medians, spread, peak memory; and the data, or why there is none.

On a CPU processor time counts, since others may use the machine; on a GPU, and where a side works in other processes, the
clock does.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], object]


def datasets(*parts: str) -> Path:
    """A file or folder below `MULTICSE_DATASETS` or ``../shared/datasets``; ends the script, saying why, where it is not."""
    root = Path(os.environ.get("MULTICSE_DATASETS", Path(__file__).resolve().parents[2] / "shared" / "datasets"))
    path = root.joinpath(*parts)
    if not path.exists():
        skip(f"{path} is not there (set MULTICSE_DATASETS)")
    return path


def skip(why: str) -> None:
    """End the script without an error."""
    print(f"skipped: {why}")
    sys.exit(0)


def device() -> torch.device:
    """The GPU if there is one; torch gets one thread, so that ratios do not depend on who else is there."""
    torch.set_num_threads(1)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def clock(wall: bool = False) -> float:
    """Seconds of processor time; of the clock on a GPU, once it has done what it was given, and where `wall` asks for it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.perf_counter() if wall else time.process_time()


def race(sides: Mapping[str, Call], rounds: int, wall: bool = False) -> dict[str, list[float]]:
    """Seconds of every round by side. Sides take turns, every second round backwards; first calls are not timed."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()
    for turn in range(rounds):
        for name in list(sides)[:: -1 if turn % 2 else 1]:
            began = clock(wall)
            sides[name]()
            took[name].append(clock(wall) - began)
    return took


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def show(title: str, took: Mapping[str, Sequence[float]], items: float = 1, ours: str = "ours") -> None:
    """Print a table: median milliseconds, their spread (half of the range of the middle half), items a second, and how many
    times faster than each side `ours` is."""
    print(f"\n{title}\n| side | ms | spread | items/s | {ours} is faster by |\n|---|---:|---:|---:|---:|")
    for name, seconds in took.items():
        median = statistics.median(seconds)
        low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else (median,) * 3
        spread, faster = 50 * (high - low) / median, ratio(seconds, took[ours])
        print(f"| {name} | {1e3 * median:.1f} | ± {spread:.0f} % | {items / median:,.0f} | {faster:.2f} |", flush=True)


def peak_mb(make: Callable[..., tuple[Any, ...]], call: Callable[..., object], *arguments: Any) -> tuple[float, Any]:
    """Megabytes by which ``call(*make(*arguments))`` raises the peak of a fresh process, and what it returns."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_grown, (make, call, arguments))


def _grown(make: Callable[..., tuple[Any, ...]], call: Callable[..., object], arguments: Sequence[Any]) -> tuple[float, Any]:
    given = make(*arguments)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far, that of `make`, is forgotten
    before = _resident("VmRSS")
    result = call(*given)
    return _resident("VmHWM") - before, result


def _resident(what: str) -> float:
    """Of this process alone, which `getrusage` is not: a child begins with its parent's."""
    found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
