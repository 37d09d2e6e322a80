"""Time the sides of a benchmark in alternation, and print their ratio as a row of docs/results/performance.md.

On a CPU processor time counts, since other programs may use the machine; on a GPU wall time does.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import cache
from pathlib import Path

import torch

Call = Callable[[], object]
HEAD = "| area | target | wanted | measured | reached | why not |\n|---|---|---|---|---|---|"


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


def clock() -> float:
    """Return seconds of processor time; on a GPU those of wall time, after it has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def race(sides: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every round by side. The order reverses every round; first calls are not timed."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()
    for update in range(rounds):
        for name in list(sides)[:: -1 if update % 2 else 1]:
            began = clock()
            sides[name]()
            took[name].append(clock() - began)
    return took


def ratios(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    """Return the ratio within every round."""
    return [a / b for a, b in zip(slow, fast, strict=True)]


def spread(values: Sequence[float]) -> float:
    """Return half of the interquartile range, in percent of the median."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return 50 * (high - low) / middle if middle else 0.0


@cache
def machine() -> str:
    """Return the date, processor, GPU and versions in one line."""
    from multicse.trainers.engine.card import library_versions

    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    parts = [f"{os.cpu_count()} x {found[1] if found else platform.processor() or platform.machine()}"]
    parts += [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    parts += [f"{name} {version}" for name, version in library_versions().items()]
    return f"{date.today()}: {', '.join(parts)}"


def report(
    area: str,
    what: str,
    measured: Sequence[float],
    at_least: float | None = None,
    at_most: float | None = None,
    unit: str = "",
    why: str = "",
) -> None:
    """Print a target as a row of docs/results/performance.md.

    Args:
        area: Section of the page.
        what: Both sides and what is compared: ``MiniLM-L6: ours / sentence-transformers, sentences per second``.
        measured: Ratio of every round.
        at_least: Smallest median that reaches the target.
        at_most: Largest median that reaches the target; exactly one of the two is given.
        unit: ``s`` if the target is in seconds and not a ratio.
        why: What the rest goes to; printed unless the target is reached.
    """
    median, unit = statistics.median(measured), f" {unit}" if unit else ""
    if at_least is not None:
        reached, wanted = median >= at_least, f"≥ {at_least:g}{unit}"
    else:
        assert at_most is not None
        reached, wanted = median <= at_most, f"≤ {at_most:g}{unit}"
    cells = [area, what, wanted, f"{median:.2f}{unit} ± {spread(measured):.0f} %", "yes" if reached else "**no**"]
    print(f"\n{machine()}\n{HEAD}\n| {' | '.join([*cells, '' if reached else why])} |", flush=True)


def forget_peak() -> None:
    """Reset the peak of this process's memory."""
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def resident(what: str) -> float:
    """Return megabytes of this process: ``VmRSS`` now, ``VmHWM`` at most since `forget_peak`.

    `getrusage` does not serve, since a child inherits its parent's peak.
    """
    found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
