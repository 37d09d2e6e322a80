"""MoCoUTRL's Table 3 against SimCSE at equal steps, on sentences of Wikipedia: the table and figures of docs/results.md.

    python benchmarks/mocoutrl_table.py --data DATASETS --out runs/mocoutrl.jsonl --seeds 1 2 3
    python benchmarks/mocoutrl_table.py --data DATASETS --out runs/mocoutrl-distilbert.jsonl --seeds 1 --steps 300 \
        --encoder models/distilbert --lr 2e-5 --only untrained simcse both

DATASETS holds the folders text_unlabeled, sts and senteval; WordNet is looked for where packages put it (--lexicon). Every
row starts from the same encoder and has the same batch, rate, schedule, temperature and steps; the checkpoint is chosen on
STS-B dev alone. Sentences without a candidate are left out of the shards, so that all rows read the same ones. The probe is
TREC with its 6 classes (SentEval's ten folds) and with its 50 (a tenth of the training part is dev). Each run adds a line
to the file; those that it holds for the same settings are not done again. Runs, sentences and figures lie in a folder
beside the file.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

if __name__ == "__main__":  # the repository before what is installed, so that a clone measures itself
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.records import Record, chosen_rows, complete, grouped
from data.shard_writer import Draft, Output, pack
from data.streams.text import TextStream
from data.streams.triplets import TripletTextStream, remembered, words
from data.wordnet.lexicon import open_lexicon
from evaluation.figures.basic import alignment_uniformity_scatter, save
from evaluation.figures.vectors import angle_kde
from evaluation.registry import make_tasks
from evaluation.tables import Row, comparison, significance
from evaluation.task import Task, embed, encode_once
from evaluation.tasks.classification import ClassificationTask
from evaluation.tasks.labelled_texts import LabelledTask
from evaluation.tasks.sts import PairTask
from evaluation.tasks.text_files import read_lines
from pipelines import parts
from pipelines.mocoutrl import LOSSES
from pipelines.parts import changed
from trainers.mocoutrl import MoCoUTRLConfig
from trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig
from trainers.simcse import SimCSEConfig

UNTRAINED, SIMCSE = "untrained", "simcse"
LABELS = {
    UNTRAINED: "untrained",
    SIMCSE: "SimCSE",
    "both": "MoCoUTRL, both losses",
    "both-plain": "both losses, no perturbation",
    "long": "long-span loss alone",
    "token": "token loss alone",
    "token-plain": "token loss alone, no perturbation",
}
SELECT = "stsb-dev"
STS = ("sts12", "sts13", "sts14", "stsb-test")
GEOMETRY = "stsb-test-geometry"
MEAN = "mean of the four"
PROBES = {"trec": "TREC 6", "trec-fine": "TREC 50"}
"""Task -> column; the number is that of the classes."""
DRAWN = (UNTRAINED, SIMCSE, "both")
"""Rows whose vectors of TREC's test part are drawn as the paper's Figure 2."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What is trained."""

    data: Path
    """The folder of the data sets."""
    out: Path
    """JSON lines, one a run; made or continued."""
    seeds: tuple[int, ...] = (1, 2, 3)
    encoder: Path = Path(parts.SMALL_ENCODER)
    """A transformer's folder; mean pooling."""
    steps: int = 500
    batch: int = 32
    lr: float = 5e-4
    """Of AdamW, with a warm-up of a tenth and a cosine, for all rows."""
    temperature: float = 0.07
    """Of SimCSE and of the long-span loss."""
    balance: float = 0.5
    """Weight of the long-span loss where both take part."""
    max_length: int = 64
    """Tokens that are kept of a sentence in training."""
    lexicon: str | None = None
    """Folder of WordNet's database files; none: where packages put WordNet."""
    only: tuple[str, ...] = ()
    """Some of untrained, simcse, both, both-plain, long, token, token-plain; none: all."""
    evaluations: int = 10
    """Times that STS-B dev is measured in training; one costs a large encoder as much as ten steps."""
    threads: int = 1
    """Of torch."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"

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
        names = ("steps", "batch", "lr", "temperature", "balance", "max_length", "precision", "evaluations")
        return {**{name: getattr(self, name) for name in names}, "encoder": self.encoder.name}

    @cached_property
    def tasks(self) -> list[Task]:
        """What is reported: STS, TREC with 6 and with 50 classes, alignment and uniformity."""
        trec = make_tasks(["trec"], self.data / "senteval" / "downstream")
        fine = ClassificationTask.from_file(trec_fine(self))
        return [*make_tasks(STS, self.data / "sts"), *trec, fine, *make_tasks([GEOMETRY], self.data / "sts")]


# -------------------------------------------------------------------------------------------------------------------- data


def prepare(a: Arguments) -> Path:
    """The shards of wiki_combined's sentences that have a candidate; packed if they are not there."""
    folder = a.work / "shards" / f"wiki-with-candidates-{a.max_length}"
    if not (folder / "dataset.json").exists():
        file = a.data / "text_unlabeled" / "wiki_combined.en.txt.gz"
        with gzip.open(file, "rt", encoding="utf-8") as text:
            lines = with_candidate([line.strip() for line in text if line.strip()], a)
            drafts = [Draft({"txt": line.encode()}) for line in lines]
        pack(drafts, Output(folder, folder.name, licence="CC BY-SA 3.0", source="English Wikipedia"))
    return folder


def with_candidate(lines: Sequence[str], a: Arguments) -> list[str]:
    """Sentences that have a word with a synonym and an antonym among their first `max_length` / 2 words, so that the word
    is there after tokenisation, nearly always."""
    find = remembered(open_lexicon(a.lexicon), None)
    return [line for line in lines if any(find(line[slice(*span)]) for span in words(line)[: a.max_length // 2])]


def trec_fine(a: Arguments) -> Path:
    """TREC with its 50 classes as a labelled TSV; written if it is not there. Every tenth question of a class is dev."""
    files = {part: a.work / "trec" / f"trec-fine.{part}.tsv" for part in ("train", "dev", "test")}
    if not all(file.exists() for file in files.values()):
        folder = a.data / "senteval" / "downstream" / "TREC"
        train, dev, seen = list[tuple[str, str]](), list[tuple[str, str]](), dict[str, int]()
        for row in trec_rows(folder / "train_5500.label"):
            seen[row[0]] = seen.get(row[0], 0) + 1
            (train if seen[row[0]] % 10 else dev).append(row)
        rows = {"train": train, "dev": dev, "test": list(trec_rows(folder / "TREC_10.label"))}
        files["train"].parent.mkdir(parents=True, exist_ok=True)
        for part, file in files.items():
            file.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in rows[part]), encoding="utf-8")
    return files["train"]


def trec_rows(file: Path) -> Iterator[tuple[str, str]]:
    """Class with subclass, and question, of every line of a file of TREC's."""
    for _, line in read_lines(file, latin=True):
        label, _, question = line.strip().partition(" ")
        yield label, " ".join(question.split())


# -------------------------------------------------------------------------------------------------------------------- runs


def recipe_of(row: str, seed: int, shards: Path, a: Arguments) -> Recipe:
    """The recipe of one run; rows differ in their method, SimCSE also in its stream, which gives a sentence once."""
    common = {"shards": str(shards), "batch_size": a.batch, "max_length": a.max_length}
    simcse = row == SIMCSE
    recipe = Recipe(
        name=f"mocoutrl/table-{row}",
        method=SimCSEConfig(head="none", temperature=a.temperature)
        if simcse
        else MoCoUTRLConfig(temperature=a.temperature, balance=a.balance),
        encoder=EncoderConfig(path=str(a.encoder), pooling="mean"),
        streams={"text": TextStream(**common) if simcse else TripletTextStream(**common, lexicon=a.lexicon)},
        optim={"text": OptimConfig(lr=a.lr, warmup=0.1, schedule="cosine")},
        evaluation=EvaluationConfig(data=str(a.data / "sts"), select=SELECT, every=max(1, a.steps // a.evaluations)),
        run=RunConfig(
            output=str(output_of(row, seed, a)),
            tracking_uri=f"sqlite:///{a.work.resolve()}/mlflow.db",
            seed=seed,
            epochs=1000,
            max_steps=a.steps,
            workers=0,
            threads=a.threads,
            precision=a.precision,
        ),
    )
    return changed(recipe, LOSSES[row][0] if row in LOSSES else {})


def output_of(row: str, seed: int, a: Arguments) -> Path:
    """The folder of a run: one for every row, seed and table."""
    return a.work / "runs" / f"{row}-{seed}-{'-'.join(str(value) for value in a.key.values())}"


def run(row: str, seed: int, shards: Path, a: Arguments) -> Record:
    """Train and measure one model, or measure the encoder as it is, which is the same for every seed."""
    from evaluation.load import load_model

    if row == UNTRAINED:
        encoder: Any = load_model(str(a.encoder), pooling="mean")
        extra: Record = {}
    else:
        from trainers.engine.launch import fit

        summary = fit(recipe_of(row, seed, shards, a))
        encoder = load_model(summary["export"])
        wanted = ("identity", "steps", "best_step", "best_score", "seconds", "train_seconds", "wait_share")
        extra = {name: summary[name] for name in wanted if name in summary}
    encoded = encode_once(a.tasks, encoder)
    scores = {task.name: task.score(encoded) for task in a.tasks}
    folder = output_of(row, seed, a)
    folder.mkdir(parents=True, exist_ok=True)
    examples: dict[str, Any] = {name: score.examples for name, score in scores.items() if score.examples is not None}
    np.savez(folder / "examples.npz", **examples)
    np.save(folder / "trec-test.npy", embed(encoded, [text for text, _ in trec_test(a)]))
    return {**a.key, "row": row, "seed": seed, **extra, "after": {name: score.metrics for name, score in scores.items()}}


def trec_test(a: Arguments) -> list[tuple[str, str]]:
    """Question and class of TREC's test part."""
    (task,) = (task for task in a.tasks if task.name == "trec")
    assert isinstance(task, LabelledTask)
    return [(row.text, row.label) for row in task.data.parts["test"]]


# ----------------------------------------------------------------------------------------------------------------- results


def table(records: Sequence[Record], a: Arguments) -> str:
    """A Markdown table, mean ± sd over seeds, with marks for differences from SimCSE, and the steps.

    Over several seeds the marks are of t tests, and the untrained encoder, which has no seeds, gets none; with one seed
    they are of paired bootstraps over the pairs or questions of a set.
    """
    runs = grouped(records, LABELS)
    rows = {name: _row(name, found, a) for name, found in runs.items()}
    several = any(len(row.runs) > 1 for row in rows.values())
    tested = [rows[name] for name in sorted(rows, key=lambda name: name != SIMCSE) if not (several and name == UNTRAINED)]
    gold = {task.name: np.asarray(task.gold) for task in a.tasks if isinstance(task, PairTask)}
    marks = significance(tested, gold) if len(tested) > 1 and SIMCSE in rows else None
    return f"{comparison(list(rows.values()), marks=marks, style='markdown')}\n\n{steps(runs, a)}"


def _row(name: str, runs: Sequence[Record], a: Arguments) -> Row:
    file = output_of(name, runs[0]["seed"], a) / "examples.npz"
    found: dict[str, np.ndarray] = dict(np.load(file)) if len(runs) == 1 and file.exists() else {}
    examples = {PROBES.get(task, task): values for task, values in found.items()}
    return Row(LABELS[name], [_shown(run["after"]) for run in runs], examples)


def _shown(results: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The headlines, with the mean over the STS sets as a column of its own; alignment and uniformity are drawn."""
    mean = sum(round(results[task]["spearman"], 2) for task in STS) / len(STS)
    sts = {task: {"spearman": results[task]["spearman"]} for task in STS}
    probes = {column: {"accuracy": results[task]["accuracy"]} for task, column in PROBES.items()}
    return {**sts, MEAN: {"spearman": mean}, **probes}


def steps(runs: Mapping[str, Sequence[Record]], a: Arguments) -> str:
    """How much was trained, and after how many steps the checkpoints were chosen."""
    chosen = [
        f"{LABELS[name]}: {', '.join(str(run['best_step']) for run in found)}"
        for name, found in runs.items()
        if name != UNTRAINED
    ]
    return (
        f"{a.steps} steps of {a.batch} sentences of at most {a.max_length} tokens, rate {a.lr:g}, "
        f"temperature {a.temperature:g}, from {a.encoder.name}. "
        f"Steps of the checkpoints chosen on STS-B dev ({'; '.join(chosen) or 'none was trained'})."
    )


# ----------------------------------------------------------------------------------------------------------------- figures


def figures(records: Sequence[Record], a: Arguments) -> list[Path]:
    """Alignment against uniformity of the rows (means over their seeds; those without perturbation, which lie on the ones
    with it, are left out), and the paper's Figure 2 of the first seed's vectors of TREC's questions; the files written."""
    folder, runs, written = a.work / "figures", grouped(records, LABELS), list[Path]()
    drawn = {name: found for name, found in runs.items() if not name.endswith("-plain")}
    places = {LABELS[name]: _place(found) for name, found in drawn.items()}
    scores = {
        LABELS[name]: float(np.mean([_shown(run["after"])[MEAN]["spearman"] for run in found]))
        for name, found in drawn.items()
    }
    if places:
        figure = alignment_uniformity_scatter(places, scores, "mean of STS12, 13, 14 and STS-B test")
        written += save(figure, folder, "mocoutrl_alignment_uniformity")
    for name in (name for name in DRAWN if name in runs):
        file = output_of(name, runs[name][0]["seed"], a) / "trec-test.npy"
        if file.exists():
            figure = angle_kde(np.load(file), [label for _, label in trec_test(a)])
            written += save(figure, folder, f"mocoutrl_angles_{name}")
    return written


def _place(runs: Sequence[Record]) -> tuple[float, float]:
    alignment, uniformity = (
        float(np.mean([run["after"][GEOMETRY][metric] for run in runs])) for metric in ("alignment", "uniformity")
    )
    return alignment, uniformity


def main(a: Arguments) -> None:
    """Run what is missing, print the table, write the figures."""
    a = replace(a, data=a.data.resolve(), out=a.out.resolve(), encoder=a.encoder.resolve())
    rows, shards = a.rows, prepare(a)
    records = complete(a.out, a.key, rows, a.seeds, lambda row, seed: run(row, seed, shards, a), seedless=UNTRAINED)
    print(table(records, a))
    print(*figures(records, a), sep="\n")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
