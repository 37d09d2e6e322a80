"""What the tables share: packing their data, running their rows over seeds as `pipelines/repeat.py` does, and the Markdown.

A run whose folder holds the summary of the same recipe is not done again, so that a table can be stopped and continued.
"""

from __future__ import annotations

import csv
import gzip
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.tables import Results, Row, comparison, significance
from pipelines.parts import changed
from pipelines.repeat import run_seed
from trainers.recipe import Recipe

Summaries = dict[str, list[dict[str, Any]]]
"""Row -> what each of its seeds wrote to summary.json."""


def pack(kind: str, source: Path, out: Path, *options: str) -> str:
    """The folder `out` with the shards of `source`, packed by ``pipelines/pack.py KIND`` where they are not there yet."""
    if not (out / "dataset.json").exists():
        command = [sys.executable, "-m", "pipelines.pack", kind, str(source), "--out", str(out), *options]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return str(out)


def write_tsv(file: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Path:
    """The file, with a line for the columns and one for each row; its folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
        writer.writerows([columns, *rows])
    return file


def wikipedia(data: Path) -> list[str]:
    """The 73,604 sentences of ``text_unlabeled/wiki_combined.en.txt.gz`` that hold anything."""
    with gzip.open(data / "text_unlabeled" / "wiki_combined.en.txt.gz", "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def pack_lines(lines: Sequence[str], out: Path) -> str:
    """The folder `out` with one sentence a sample."""
    out.parent.mkdir(parents=True, exist_ok=True)
    source = out.with_suffix(".txt")
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return pack("text", source, out)


def run_rows(recipes: Mapping[str, Recipe], seeds: Sequence[int], out: Path, threads: int = 1) -> Summaries:
    """Train every row with every seed in this process, below ``out/runs``, one after the other."""
    shared = {
        "run.tracking_uri": f"sqlite:///{out.resolve()}/mlflow.db",
        "run.workers": 0,
        "run.gpus_per_worker": 0,
        "run.threads": threads,
    }
    found: Summaries = {name: [] for name in recipes}
    for seed in seeds:
        for name, recipe in recipes.items():
            folder = out / "runs" / name / f"seed-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            found[name].append(run_seed(changed(recipe, shared), seed, folder))
    return found


def with_mean(results: Results, tasks: Sequence[str]) -> Results:
    """The results and a task `mean` with the mean Spearman of `tasks`, each rounded to two decimals first."""
    mean = sum(round(results[task]["spearman"], 2) for task in tasks) / len(tasks)
    return {**results, f"mean of {len(tasks)}": {"spearman": mean}}


def markdown(rows: Mapping[str, Sequence[Results]], reference: str, metric: str | None = None) -> str:
    """Mean ± sd over seeds, a row a label; marks are of t tests against `reference`, where there are several seeds."""
    lines = {label: Row(label, runs) for label, runs in rows.items()}
    tested = [line for line in sorted(lines.values(), key=lambda line: line.label != reference) if len(line.runs) > 1]
    marks = significance(tested, metric=metric) if len(tested) > 1 else None
    return comparison(list(lines.values()), metric=metric, marks=marks, style="markdown")


def chosen_steps(runs: Summaries) -> str:
    """After how many steps the checkpoints were chosen."""
    return "; ".join(f"{name}: {', '.join(str(run['best_step']) for run in found)}" for name, found in runs.items())
