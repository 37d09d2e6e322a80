"""GCLSR's Table 2 on sentences of Wikipedia with any word vectors: the table and figures of docs/results.md.

    python benchmarks/gclsr_table.py --data DATASETS --vectors glove.txt --out runs/gclsr.jsonl --seeds 1 2 3
    python benchmarks/gclsr_table.py --data DATASETS --vectors glove.txt --out runs/gclsr-all.jsonl --seeds 1 \
        --sentences all --only mean base pwva-att-gp

DATASETS holds the folders text_unlabeled and sts. Rows have equal data and passes; the checkpoint is chosen on STS-B dev
alone. They are trained one after the other in this process. Each run adds a line to the file; those that it holds for the
same vectors, sentences, passes and width are not done again, so that a table can be stopped and continued. Runs, sentences
and the paper's Figures 3 and 4 lie in a folder beside the file.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from matplotlib.figure import Figure

if __name__ == "__main__":  # the repository before what is installed, so that a clone measures itself
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.records import Record, chosen_rows, complete, grouped
from data.shard_writer import Draft, Output, pack
from data.shards import ShardSet
from evaluation.encoders.word_vectors import WordVectors
from evaluation.figures.basic import COLOURS, MARKERS, legend, new_figure, save
from evaluation.figures.words import attention_importance, word_importance
from evaluation.registry import make_tasks
from evaluation.tables import Row, comparison, significance
from evaluation.task import encode_once
from evaluation.tasks.sts import PairTask
from pipelines import gclsr
from pipelines.parts import changed
from trainers.recipe import Recipe

MEAN = "mean"
LABELS = {
    MEAN: "mean of word vectors",
    "base": "base",
    "pwva": "+ PWVA",
    "pwva-att": "+ PWVA, attention",
    "pwva-att-gp": "+ PWVA, attention, groups",
    "eda-att-gp": "+ EDA, attention, groups",
}
SELECT = "stsb-dev"
FINAL = ("sts12", "sts13", "sts14", "stsb-test")
DRAW = 2023  # seed of the sentences, the same for every row and seed
SHOWN, LEAST = 5, 8  # sentences in the figure of attention, and their least number of words


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What is trained."""

    data: Path
    """The folder of the data sets."""
    vectors: Path
    """Word vectors: a word2vec or GloVe file, or a folder of them."""
    out: Path
    """JSON lines, one a run; made or continued."""
    seeds: tuple[int, ...] = (1, 2, 3)
    sentences: int | Literal["all"] = 10_000
    """Drawn from wiki_combined, the same for all rows."""
    epochs: int = 20
    batch: int = 512
    """The learning rate is proportional to it."""
    width: int = 512
    """Of the projector, the predictor's bottleneck is a quarter; the paper has 4096."""
    only: tuple[str, ...] = ()
    """Some of mean, base, pwva, pwva-att, pwva-att-gp, eda-att-gp; none: all."""
    threads: int = 1
    """Of torch."""

    @property
    def work(self) -> Path:
        """Where sentences, runs and figures lie."""
        return self.out.with_suffix("")

    @property
    def rows(self) -> tuple[str, ...]:
        """The chosen rows, in the table's order. Raises ValueError for an unknown one."""
        return chosen_rows(self.only, LABELS)

    @property
    def key(self) -> Record:
        """What runs of one table have in common."""
        shared = {name: getattr(self, name) for name in ("sentences", "epochs", "batch", "width")}
        return {**shared, "vectors": self.vectors.name}

    @cached_property
    def tasks(self) -> list[PairTask]:
        """What is reported."""
        return [task for task in make_tasks(FINAL, self.data / "sts") if isinstance(task, PairTask)]


# -------------------------------------------------------------------------------------------------------------- sentences


def draw(lines: Sequence[str], count: int | Literal["all"]) -> list[str]:
    """`count` different places of `lines`, in their order; all that there are, if these are fewer."""
    if count == "all" or count >= len(lines):
        return list(lines)
    places = np.random.default_rng(DRAW).choice(len(lines), count, replace=False)
    return [lines[place] for place in sorted(places)]


def prepare(a: Arguments) -> Path:
    """The shards of the drawn sentences; packed if they are not there."""
    folder = a.work / "shards" / f"wiki-{a.sentences}"
    if not (folder / "dataset.json").exists():
        file = a.data / "text_unlabeled" / "wiki_combined.en.txt.gz"
        with gzip.open(file, "rt", encoding="utf-8") as text:
            lines = [line.strip() for line in text if line.strip()]
        drafts = [Draft({"txt": line.encode()}) for line in draw(lines, a.sentences)]
        pack(drafts, Output(folder, folder.name, licence="CC BY-SA 3.0", source="English Wikipedia"))
    return folder


# -------------------------------------------------------------------------------------------------------------------- runs


def recipe_of(row: str, seed: int, shards: Path, a: Arguments) -> Recipe:
    """The recipe of one run: Table 2's row with these vectors, sentences and sizes."""
    recipe = gclsr.RECIPES[row]()
    steps = math.ceil(ShardSet.open(str(shards)).samples / a.batch)
    changes = {
        "name": f"gclsr/table-{row}",
        "encoder.vectors": str(a.vectors),
        "method.width": a.width,
        "method.bottleneck": a.width // 4,
        "streams.text.shards": str(shards),
        "streams.text.batch_size": a.batch,
        "optim.text.lr": gclsr.BASE_RATE * a.batch / 128,
        "evaluation.data": str(a.data / "sts"),
        "evaluation.select": SELECT,
        "evaluation.final": FINAL,
        "evaluation.every": steps,
        "run.output": str(output_of(row, seed, a)),
        "run.tracking_uri": f"sqlite:///{a.work.resolve()}/mlflow.db",
        "run.seed": seed,
        "run.epochs": a.epochs,
        "run.workers": 0,
        "run.gpus_per_worker": 0,
        "run.threads": a.threads,
    }
    return changed(recipe, changes)


def output_of(row: str, seed: int, a: Arguments) -> Path:
    """The folder of a run: one for every row, seed and table."""
    return a.work / "runs" / f"{row}-{seed}-{'-'.join(str(value) for value in a.key.values())}"


def run(row: str, seed: int, shards: Path, a: Arguments) -> Record:
    """Train and measure one model, or measure the mean of the word vectors, which is the same for every seed."""
    if row == MEAN:
        encoder: Any = WordVectors(a.vectors, "gclsr")
        extra: Record = {}
    else:
        from evaluation.load import load_model
        from trainers.engine.launch import fit

        recipe = recipe_of(row, seed, shards, a)
        summary = fit(recipe)
        encoder = load_model(summary["export"])
        wanted = ("identity", "steps", "best_step", "best_score", "seconds", "train_seconds")
        extra = {name: summary[name] for name in wanted} | {"curve": curve(Path(recipe.run.output) / "journal.jsonl")}
    encoded = encode_once(a.tasks, encoder)
    scores = {task.name: task.score(encoded) for task in a.tasks}
    folder = output_of(row, seed, a)
    folder.mkdir(parents=True, exist_ok=True)
    cosines: dict[str, Any] = {name: score.examples for name, score in scores.items()}
    np.savez(folder / "cosines.npz", **cosines)
    after = {name: score.metrics for name, score in scores.items()}
    return {**a.key, "row": row, "seed": seed, **extra, "after": after}


def curve(journal: Path) -> list[tuple[int, float]]:
    """Step and score on STS-B dev at every evaluation; of a step that was repeated the last."""
    found: dict[int, float] = {}
    for line in journal.read_text().splitlines():
        entry = json.loads(line)
        value = entry.get("metrics", {}).get(f"eval/{SELECT}/spearman")
        if value is not None:
            found[entry["step"]] = value
    return sorted(found.items())


# ----------------------------------------------------------------------------------------------------------------- results


def table(records: Sequence[Record], a: Arguments) -> str:
    """A Markdown table, mean ± sd over seeds; marks are for differences from `base`.

    Over several seeds they are of t tests, and the mean of word vectors, which has no seeds, gets none; with one seed they
    are of paired bootstraps over the pairs of a set.
    """
    runs = grouped(records, LABELS)
    rows = {name: _row(name, found, a) for name, found in runs.items()}
    several = any(len(row.runs) > 1 for row in rows.values())
    tested = [rows[name] for name in sorted(rows, key=lambda name: name != "base") if not (several and name == MEAN)]
    gold = {task.name: np.asarray(task.gold) for task in a.tasks} if not several else None
    marks = significance(tested, gold, metric="spearman") if len(tested) > 1 and "base" in rows else None
    return comparison(list(rows.values()), metric="spearman", marks=marks, style="markdown")


def _row(name: str, runs: Sequence[Record], a: Arguments) -> Row:
    examples: dict[str, np.ndarray] = {}
    file = output_of(name, runs[0]["seed"], a) / "cosines.npz"
    if len(runs) == 1 and file.exists():
        examples = dict(np.load(file))
    return Row(LABELS[name], [_with_mean(run["after"]) for run in runs], examples)


def _with_mean(results: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """With the mean over the sets as a column of its own."""
    mean = sum(round(results[task]["spearman"], 2) for task in FINAL) / len(FINAL)
    return {**{task: dict(scores) for task, scores in results.items()}, "mean of the four": {"spearman": mean}}


# ----------------------------------------------------------------------------------------------------------------- figures


def learning_curves(curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]]) -> Figure:
    """Score on STS-B dev over the steps, a line a row (the mean of its seeds): label -> [(step, score) of each seed].

    (GCLSR, Figure 4.) Raises ValueError where there is none, or seeds were not measured at the same steps.
    """
    if not curves:
        raise ValueError("no row was trained, so there is nothing to draw: curves is empty")
    figure = new_figure()
    axes = figure.add_subplot()
    for i, (label, seeds) in enumerate(curves.items()):
        steps = [[step for step, _ in points] for points in seeds]
        if any(found != steps[0] for found in steps) or not steps[0]:
            raise ValueError(f"{label}: the seeds were measured at different steps, or never")
        mean = np.mean([[score for _, score in points] for points in seeds], axis=0)
        axes.plot(steps[0], mean, color=COLOURS[i], marker=MARKERS[i], markersize=3, label=label)
    axes.set(xlabel="step", ylabel="Spearman x 100 on STS-B dev")
    axes.margins(y=0.3)  # room for the legend
    legend(axes)
    return figure


def attention_figure(vectors: WordVectors, texts: Sequence[str]) -> Figure:
    """Words that have a vector, coloured by the weight that attention gives them in training. (GCLSR, Figure 3.)"""
    found = (vectors.known_words(text) for text in texts)
    chosen = [(words, attention_importance(x)) for words, x in found if len(words) >= LEAST]
    return word_importance(chosen[:SHOWN])


def figures(records: Sequence[Record], a: Arguments) -> list[Path]:
    """The paper's Figures 3 and 4 of the runs; the files written."""
    folder, written = a.work / "figures", list[Path]()
    trained = {name: runs for name, runs in grouped(records, LABELS).items() if name != MEAN}
    if trained:
        curves = {LABELS[name]: [[tuple(point) for point in run["curve"]] for run in runs] for name, runs in trained.items()}
        written += save(learning_curves(curves), folder, "gclsr_learning_curves")
    (dev,) = make_tasks([SELECT], a.data / "sts")
    return [*written, *save(attention_figure(WordVectors(a.vectors, "gclsr"), dev.sentences()), folder, "gclsr_attention")]


def main(a: Arguments) -> None:
    """Run what is missing, print the table, write the figures."""
    a = replace(a, data=a.data.resolve(), out=a.out.resolve(), vectors=a.vectors.resolve())
    rows, shards = a.rows, prepare(a)
    records = complete(a.out, a.key, rows, a.seeds, lambda row, seed: run(row, seed, shards, a), seedless=MEAN)
    print(table(records, a))
    print(*figures(records, a), sep="\n")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
