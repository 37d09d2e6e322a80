"""SimCSE, VisualCSE, AudioCSE and both at equal text steps, from one encoder: a small Table 1 of NonLing-CSE.

    python -m benchmarks.tables.nonling --data DATASETS --out runs/nonling-table [--seeds 1 2 3]

DATASETS holds the folders text_unlabeled, cifar10, fsdd and sts. Checkpoints are chosen on STS-B dev.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import tyro

from benchmarks.tables.rows import markdown, pack, run_rows, with_mean
from pipelines.parts import SMALL_ENCODER, changed

LABELS = {
    "simcse": "SimCSE",
    "visualcse": "VisualCSE",
    "audiocse": "AudioCSE",
    "nonlingcse": "images and sounds",
}


def main(
    data: Path,
    out: Path,
    seeds: tuple[int, ...] = (1, 2, 3),
    only: tuple[str, ...] = tuple(LABELS),
    encoder: Path = Path(SMALL_ENCODER),
    steps: int = 200,
    every: int = 50,
    text_batch: int = 64,
    other_batch: int = 48,
    text_lr: float = 5e-4,
    image_lr: float = 1.5e-5,
    audio_lr: float = 3.5e-6,
    temperature: float = 0.2,
    tasks: tuple[str, ...] = ("sts12", "sts13", "sts14", "stsb-test"),
    threads: int = 1,
) -> None:
    """Run what is missing, print the table."""
    wiki = pack("text", data / "text_unlabeled" / "wiki_combined.en.txt.gz", out / "shards" / "wiki")
    root = ("--root", str(data / "fsdd" / "fsdd_flac.tar"))
    speech = pack("audio", data / "fsdd" / "fsdd.tsv", out / "shards" / "fsdd", "--label", "speaker", *root)
    common: dict[str, Any] = {
        "encoder.path": str(encoder),
        "run.max_steps": steps,
        "evaluation.data": str(data / "sts"),
        "evaluation.select": "stsb-dev",
        "evaluation.watch": (),
        "evaluation.final": tasks,
        "evaluation.every": every,
        "optim.text.lr": text_lr,
        "streams.text.shards": wiki,
        "streams.text.batch_size": text_batch,
    }
    others: dict[str, dict[str, Any]] = {
        "image": {
            "streams.image.shards": str(data / "cifar10" / "cifar10-train-{00000..00004}.tar"),
            "streams.image.batch_size": other_batch,
            "optim.image.lr": image_lr,
            "streams.image.flip": 0.5,
            "streams.image.jitter": (0.4, 0.4, 0.4, 0.1),
            "streams.image.grayscale_probability": 0.2,
        },
        "audio": {
            "streams.audio.shards": speech,
            "streams.audio.batch_size": other_batch,
            "optim.audio.lr": audio_lr,
        },
    }
    recipes = {}
    for paper in only:
        recipe = import_module(f"pipelines.{paper}").RECIPES["demo"]()
        changes = common | {f"{'method' if paper == 'simcse' else 'method.text'}.temperature": temperature}
        for stream in recipe.streams:
            changes |= others.get(stream, {})
        recipes[paper] = changed(recipe, changes)
    runs = run_rows(recipes, seeds, out, threads)
    rows = {LABELS[name]: [with_mean(run["after"], tasks) for run in found] for name, found in runs.items()}
    untrained = {"untrained": [with_mean(runs[only[0]][0]["before"], tasks)]}
    print(markdown(untrained | rows, LABELS[only[0]]))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
