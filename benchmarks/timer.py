"""Time the sides of a benchmark alternately, and print their ratio as a row of docs/dev/performance.md.

Processor time is measured on a CPU, since other programs may use the machine, and wall time on a GPU.
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
    """Write a BERT with random weights and the tokenizer of the small encoder.

    Args:
        shape: Layers x width, such as ``12x768``.
        folder: Folder to write to.

    Returns:
        The folder.
    """
    from transformers import AutoTokenizer, BertConfig, BertModel

    from multicse.pipelines.parts import SMALL_ENCODER

    layers, width = (int(number) for number in shape.split("x"))
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 4 * width}
    torch.manual_seed(0)
    BertModel(BertConfig(num_attention_heads=max(1, width // 64), **sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(SMALL_ENCODER).save_pretrained(folder)
    return folder


def clock() -> float:
    """Return seconds of processor time; on a GPU, seconds of wall time after synchronisation."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def race(sides: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Time the sides of a benchmark. The order reverses every round; first calls are not timed.

    Args:
        sides: Functions to time, by name.
        rounds: Number of rounds.

    Returns:
        Seconds of every round, by name.
    """
    took: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()
    for number in range(rounds):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            start = clock()
            sides[name]()
            took[name].append(clock() - start)
    return took


def ratios(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    """Return the ratio of every round."""
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
    """Print a target as a row of docs/dev/performance.md.

    Args:
        area: Section of the page.
        what: Both sides and the quantity: ``MiniLM-L6: ours / sentence-transformers, sentences per second``.
        measured: Ratio of every round.
        at_least: Lowest median that reaches the target.
        at_most: Highest median that reaches the target; exactly one of the two is specified.
        unit: ``s`` if the target is in seconds and not a ratio.
        why: Explanation that is printed if the target is not reached.
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
    """Reset the peak memory of this process."""
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def resident(what: str) -> float:
    """Return the memory of this process in megabytes: ``VmRSS`` (current) or ``VmHWM`` (peak since `forget_peak`).

    `getrusage` is unsuitable, since a child inherits the peak of its parent.
    """
    found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
