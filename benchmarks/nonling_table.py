"""SimCSE, VisualCSE, AudioCSE and both at equal text steps: the table of docs/results.md.

    python benchmarks/nonling_table.py --wiki shards/wiki --cifar 'cifar10-train-{00000..00004}.tar' --speech shards/fsdd \\
        --sts DATASETS/sts --out runs/nonling-table

Runs are independent processes; one that has its summary.json is not run again.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Arguments:
    """Where the data is and how much is run."""

    wiki: str
    cifar: str
    speech: str
    sts: str
    out: Path
    encoder: str | None = None
    """None: the shipped one."""
    steps: int = 200
    every: int = 50
    text_batch: int = 64
    other_batch: int = 48
    text_lr: float = 5e-4
    image_lr: float = 1.5e-5
    audio_lr: float = 3.5e-6
    temperature: float = 0.2
    seeds: tuple[int, ...] = (1, 2, 3)
    tasks: tuple[str, ...] = ("sts12", "sts13", "sts14", "stsb-test")
    processes: int = 2
    """Runs at a time, each with one thread."""


def command(a: Arguments, paper: str, seed: int) -> list[str]:
    """The command line of one run."""
    prefix = "method" if paper == "simcse" else "method.text"
    options = {
        "run.output": str(a.out / f"{paper}-{seed}"),
        "run.tracking-uri": f"sqlite:///{a.out.resolve()}/{paper}-{seed}.db",
        "run.seed": seed,
        "run.workers": 0,
        "run.threads": max(1, 2 // a.processes),
        "run.max-steps": a.steps,
        "evaluation.data": a.sts,
        "evaluation.select": "stsb-dev",
        "evaluation.every": a.every,
        "optim.text.lr": a.text_lr,
        f"{prefix}.temperature": a.temperature,
        "streams.text.shards": a.wiki,
        "streams.text.batch-size": a.text_batch,
    }
    if a.encoder:
        options["encoder.path"] = a.encoder
    if paper in ("visualcse", "nonlingcse"):
        options |= {"streams.image.shards": a.cifar, "streams.image.batch-size": a.other_batch, "optim.image.lr": a.image_lr}
        options |= {
            "streams.image.flip": 0.5,
            "streams.image.jitter": "0.4 0.4 0.4 0.1",
            "streams.image.grayscale-probability": 0.2,
        }
    if paper in ("audiocse", "nonlingcse"):
        options |= {
            "streams.audio.shards": a.speech,
            "streams.audio.batch-size": a.other_batch,
            "optim.audio.lr": a.audio_lr,
        }
    words = [word for name, value in options.items() for word in (f"--{name}", *str(value).split(" "))]
    return [sys.executable, f"pipelines/{paper}.py", "demo", *words, "--evaluation.watch", "--evaluation.final", *a.tasks]


def run(a: Arguments, paper: str, seed: int) -> dict[str, object]:
    """Run unless it was; its summary."""
    folder = a.out / f"{paper}-{seed}"
    if not (folder / "summary.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "log.txt", "w") as log:
            subprocess.run(command(a, paper, seed), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=True)
    return dict(json.loads((folder / "summary.json").read_text()))


def main(a: Arguments) -> None:
    """Run the grid, print the Markdown table."""
    papers = ("simcse", "visualcse", "audiocse", "nonlingcse")
    jobs = [(paper, seed) for seed in a.seeds for paper in papers]
    with ThreadPoolExecutor(a.processes) as pool:
        results = dict(zip(jobs, pool.map(lambda job: run(a, *job), jobs), strict=True))

    def cell(values: list[float]) -> str:
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.2f}{spread}"

    def row(name: str, paper: str, side: str) -> str:
        # JSON of summary.json.
        scores = [[results[paper, seed][side][task]["spearman"] for task in a.tasks] for seed in a.seeds]  # type: ignore[index]
        seeds = scores[:1] if side == "before" else scores
        cells = [cell([s[i] for s in seeds]) for i in range(len(a.tasks))] + [cell([statistics.mean(s) for s in seeds])]
        return f"| {name} | {' | '.join(cells)} |"

    print(f"| {a.steps} text steps | {' | '.join(a.tasks)} | average |\n|---|{'---|' * (len(a.tasks) + 1)}")
    print(row("untrained", "simcse", "before"))
    for paper in papers:
        print(row(paper, paper, "after"))


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
