"""Every benchmark of benchmarks/speed/, and one table of what they are to show: ``make bench``.

    python -m benchmarks.targets [--only text start] [--write]

A benchmark that lacks its data says so and has no row.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import tyro

from benchmarks.speed.once import BENCHMARKS
from benchmarks.timer import HEAD, ROWS, Target

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "figures"


def modules() -> dict[str, list[str]]:
    """Name of every benchmark, and what ``python -m`` runs it with."""
    names = [file.stem for file in (ROOT / "benchmarks" / "speed").glob("[a-z]*.py") if file.stem != "once"]
    found = {name: [f"benchmarks.speed.{name}"] for name in names}
    found |= {name: ["benchmarks.speed.once", name] for name in BENCHMARKS}
    return dict(sorted(found.items()))


def machine() -> str:
    """Processor, GPU and versions, in a line."""
    import torch

    from multicse.trainers.engine.card import library_versions

    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    parts = [f"{os.cpu_count()} x {found[1] if found else platform.processor() or platform.machine()}"]
    parts += [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    parts += [f"{name} {version}" for name, version in library_versions().items()]
    return f"{date.today()}: {', '.join(parts)}"


class Found(NamedTuple):
    """What the benchmarks told."""

    targets: list[Target]
    notes: list[tuple[str, str]]
    """Area and text."""
    failed: list[str]
    """Names of benchmarks that ended with an error."""


def measure(chosen: dict[str, list[str]]) -> Found:
    """Run these of `modules`, whose output is seen."""
    failed = []
    with tempfile.TemporaryDirectory() as place:
        rows = Path(place) / "rows.jsonl"
        rows.touch()
        for name, module in chosen.items():
            print(f"\n== {name}", flush=True)
            if subprocess.run([sys.executable, "-m", *module], cwd=ROOT, env={**os.environ, ROWS: str(rows)}).returncode:
                failed.append(name)
        lines = [json.loads(line) for line in rows.read_text().splitlines()]
    targets = [Target(**line) for line in lines if "what" in line]
    return Found(targets, [(line["area"], line["text"]) for line in lines if "text" in line], failed)


def table(targets: list[Target]) -> str:
    """All targets, in the order in which they were measured."""
    return "\n".join([HEAD, *(target.row() for target in targets)])


def draw(targets: list[Target]) -> None:
    """A figure an area: the ratio of every target, with its rounds, and what was wanted."""
    import matplotlib.pyplot as plt

    for area in dict.fromkeys(target.area for target in targets):
        rows = [target for target in targets if target.area == area and target.measured]
        if not rows:
            continue
        figure, axes = plt.subplots(figsize=(9, 1 + 0.45 * len(rows)), layout="constrained")
        for place, target in enumerate(rows):
            colour = "tab:blue" if target.reached else "tab:orange"
            axes.barh(place, statistics.median(target.measured), color=colour, height=0.6)
            axes.plot(target.measured, [place] * len(target.measured), "k.", markersize=3)
            axes.plot([target.limit] * 2, [place - 0.4, place + 0.4], color="black", linewidth=2)
        axes.set_yticks(range(len(rows)), [f"{target.what} ({target.wanted})" for target in rows], fontsize=7)
        axes.invert_yaxis()
        axes.set_title(f"{area}: measured, and what was wanted (line)", fontsize=9)
        figure.savefig(FIGURES / f"performance_{area}.png", dpi=120)
        plt.close(figure)


def update(targets: list[Target], notes: Sequence[tuple[str, str]] = ()) -> None:
    """Replace the rows of these areas in `PAGE`, each with its notes, and draw their figures."""
    text = PAGE.read_text()
    for area in dict.fromkeys(target.area for target in targets):
        of_area = [target for target in targets if target.area == area]
        begin, end = f"<!-- {area}: measured -->", "<!-- end -->"
        told = [machine(), table(of_area), *(text for about, text in notes if about == area)]
        told += [f"![{area}](figures/performance_{area}.png)"] if any(target.measured for target in of_area) else []
        part = "\n".join([begin, "\n\n".join(told), end])
        before, found, rest = text.partition(begin)
        text = f"{before}{part}{rest.partition(end)[2]}" if found else f"{text}\n## {area}\n\n{part}\n"
    PAGE.write_text(text)
    draw(targets)


def main(only: tuple[str, ...] = (), write: bool = False) -> None:
    """Print the table. `only`: some of the benchmarks. `write`: into docs/performance.md too, with figures."""
    known = modules()
    if unknown := set(only) - set(known):
        sys.exit(f"--only: there is no benchmark {sorted(unknown)[0]!r}; there are {', '.join(known)}")
    found = measure({name: module for name, module in known.items() if not only or name in only})
    print(f"\n{machine()}\n\n{table(found.targets)}")
    if write:
        update(found.targets, found.notes)
    if found.failed:
        sys.exit(f"failed: {', '.join(found.failed)}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
