"""GCLSR's Table 2 on sentences of Wikipedia with any word vectors.

    python -m benchmarks.tables.gclsr --data DATASETS --vectors glove.txt --out runs/gclsr-table [--seeds 1 2 3]
    python -m benchmarks.tables.gclsr --data DATASETS --vectors glove.txt --out runs/gclsr-all --sentences 73604 --epochs 3

DATASETS holds the folders text_unlabeled and sts. Rows have equal sentences and passes; checkpoints are chosen on STS-B dev.
The paper's Figure 3, what the attention weighs, is drawn into ``OUT/figures``.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import tyro

from benchmarks.tables.rows import chosen_steps, markdown, pack_lines, run_rows, wikipedia, with_mean
from evaluation.encoders.word_vectors import WordVectors
from evaluation.figures.basic import save
from evaluation.figures.words import attention_importance, word_importance
from evaluation.registry import make_tasks
from evaluation.task import encode_once
from pipelines import gclsr
from pipelines.parts import changed

LABELS = {
    "base": "base",
    "pwva": "+ PWVA",
    "pwva-att": "+ PWVA, attention",
    "pwva-att-gp": "+ PWVA, attention, groups",
    "eda-att-gp": "+ EDA, attention, groups",
}
FINAL = ("sts12", "sts13", "sts14", "stsb-test")
DRAW = 2023
"""Seed of the sentences, the same for every row and seed."""


def main(
    data: Path,
    vectors: Path,
    out: Path,
    seeds: tuple[int, ...] = (1, 2, 3),
    only: tuple[str, ...] = tuple(LABELS),
    sentences: int = 10_000,
    epochs: int = 20,
    batch: int = 512,
    width: int = 512,
    threads: int = 1,
) -> None:
    """Run what is missing, print the table, draw the figure. `width`: of the projector; the paper has 4096."""
    lines = wikipedia(data)
    places = np.random.default_rng(DRAW).choice(len(lines), min(sentences, len(lines)), replace=False)
    shards = pack_lines([lines[place] for place in sorted(places)], out / "shards" / f"wiki-{len(places)}")
    changes = {
        "encoder.vectors": str(vectors.resolve()),
        "method.width": width,
        "method.bottleneck": width // 4,
        "streams.text.shards": shards,
        "streams.text.batch_size": batch,
        "optim.text.lr": gclsr.BASE_RATE * batch / 128,
        "evaluation.data": str(data / "sts"),
        "evaluation.final": FINAL,
        "evaluation.every": math.ceil(len(places) / batch),
        "run.epochs": epochs,
    }
    runs = run_rows({name: changed(gclsr.RECIPES[name](), changes) for name in only}, seeds, out, threads)
    rows = {LABELS[name]: [with_mean(run["after"], FINAL) for run in found] for name, found in runs.items()}
    plain = WordVectors(vectors, "letters")
    tasks = make_tasks(FINAL, data / "sts")
    encoded = encode_once(tasks, plain)
    mean = {task.name: task.score(encoded).metrics for task in tasks}
    print(markdown({"mean of word vectors": [with_mean(mean, FINAL)]} | rows, LABELS[only[0]], metric="spearman"))
    print(f"\nChosen on STS-B dev after steps: {chosen_steps(runs)}")
    known = [plain.known_words(text) for text in make_tasks(["stsb-dev"], data / "sts")[0].sentences()]
    longest = [(words, attention_importance(x)) for words, x in known if len(words) >= 8][:5]
    print(*save(word_importance(longest), out / "figures", "gclsr_attention"), sep="\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
