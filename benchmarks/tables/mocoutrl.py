"""MoCoUTRL's Table 3 against SimCSE at equal steps, on sentences of Wikipedia that have a word to replace.

    python -m benchmarks.tables.mocoutrl --data DATASETS --out runs/mocoutrl-table --steps 300 [--seeds 1 2 3]
    python -m benchmarks.tables.mocoutrl --data DATASETS --out runs/mocoutrl-distilbert --encoder DIR --lr 2e-5 --steps 100

DATASETS holds the folders text_unlabeled, sts and senteval; WordNet is looked for where packages put it (--lexicon). Rows
start from one encoder and have the same batch, rate, schedule, temperature and sentences; checkpoints are chosen on STS-B
dev. The probe is TREC with its 6 classes (SentEval's ten folds) and with its 50 (every tenth question of a class is dev).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import tyro

from benchmarks.tables.rows import Summaries, chosen_steps, markdown, pack_lines, run_rows, wikipedia, with_mean, write_tsv
from data.streams.text import TextStream
from data.streams.triplets import TripletTextStream, remembered, words
from data.wordnet.lexicon import open_lexicon
from evaluation.figures.basic import alignment_uniformity_scatter, save
from evaluation.tables import Results
from pipelines.mocoutrl import LOSSES
from pipelines.parts import SMALL_ENCODER, changed
from trainers.mocoutrl import MoCoUTRLConfig
from trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig
from trainers.simcse import SimCSEConfig

LABELS = {
    "simcse": "SimCSE",
    "both": "MoCoUTRL, both losses",
    "both-plain": "both losses, no perturbation",
    "long": "long-span loss alone",
    "token": "token loss alone",
    "token-plain": "token loss alone, no perturbation",
}
STS = ("sts12", "sts13", "sts14", "stsb-test")
GEOMETRY = "stsb-test-geometry"


def with_candidate(lines: list[str], max_length: int, lexicon: str | None) -> list[str]:
    """Sentences that have a word with a synonym and an antonym among their first `max_length` / 2 words, so that the word is
    there after tokenisation, nearly always."""
    find = remembered(open_lexicon(lexicon), None)
    return [line for line in lines if any(find(line[slice(*span)]) for span in words(line)[: max_length // 2])]


def trec_fine(source: Path, folder: Path) -> str:
    """The task of TREC with its 50 classes, whose labelled files are written into `folder`."""

    def rows(name: str) -> list[tuple[str, str]]:
        lines = (source / name).read_text(encoding="latin-1").splitlines()
        pairs = (line.strip().partition(" ") for line in lines if line.strip())
        return [(label, " ".join(question.split())) for label, _, question in pairs]

    seen = Counter[str]()
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "dev": [], "test": rows("TREC_10.label")}
    for label, question in rows("train_5500.label"):
        seen[label] += 1
        parts["train" if seen[label] % 10 else "dev"].append((label, question))
    for part, found in parts.items():
        write_tsv(folder / f"trec-fine.{part}.tsv", ("label", "text"), found)
    return f"classify:{folder / 'trec-fine.train.tsv'}"


def one_folder(data: Path, folder: Path) -> str:
    """A folder with links to the STS files and to SentEval's TREC, since a recipe has one folder of evaluation data."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in (*(data / "sts").glob("*.tsv"), data / "senteval" / "downstream" / "TREC"):
        if not (folder / source.name).exists():
            (folder / source.name).symlink_to(source.resolve())
    return str(folder)


def figure(runs: Summaries, out: Path) -> tuple[Path, ...]:
    """Alignment against uniformity of the rows, means over seeds."""

    def mean(found: list[dict[str, Results]], task: str, metric: str) -> float:
        return float(np.mean([run["after"][task][metric] for run in found]))

    places = {
        LABELS[name]: (mean(found, GEOMETRY, "alignment"), mean(found, GEOMETRY, "uniformity"))
        for name, found in runs.items()
    }
    scores = {LABELS[name]: float(np.mean([mean(found, task, "spearman") for task in STS])) for name, found in runs.items()}
    drawn = alignment_uniformity_scatter(places, scores, "mean of STS12, 13, 14 and STS-B test")
    return save(drawn, out / "figures", "mocoutrl_alignment_uniformity")


def main(
    data: Path,
    out: Path,
    seeds: tuple[int, ...] = (1, 2, 3),
    only: tuple[str, ...] = tuple(LABELS),
    encoder: Path = Path(SMALL_ENCODER),
    steps: int = 500,
    batch: int = 32,
    lr: float = 5e-4,
    temperature: float = 0.07,
    max_length: int = 64,
    lexicon: str | None = None,
    evaluations: int = 10,
    threads: int = 1,
) -> None:
    """Run what is missing, print the table, draw the figure. `evaluations`: times that STS-B dev is measured in training."""
    lines = with_candidate(wikipedia(data), max_length, lexicon)
    common = {
        "shards": pack_lines(lines, out / "shards" / f"wiki-{max_length}"),
        "batch_size": batch,
        "max_length": max_length,
    }
    fine = trec_fine(data / "senteval" / "downstream" / "TREC", out / "trec")
    mocoutrl = Recipe(
        name="mocoutrl/table",
        method=MoCoUTRLConfig(temperature=temperature),
        encoder=EncoderConfig(path=str(encoder), pooling="mean"),
        streams={"text": TripletTextStream(**common, lexicon=lexicon)},
        optim={"text": OptimConfig(lr=lr, warmup=0.1, schedule="cosine")},
        evaluation=EvaluationConfig(
            data=one_folder(data, out / "evaluation"),
            select="stsb-dev",
            final=(*STS, "trec", fine, GEOMETRY),
            every=max(1, steps // evaluations),
        ),
        run=RunConfig(epochs=1000, max_steps=steps),
    )
    simcse = {
        "name": "simcse/table",
        "method": SimCSEConfig(head="none", temperature=temperature).model_dump(),
        "streams": {"text": TextStream(**common).model_dump()},
    }
    recipes = {name: changed(mocoutrl, simcse if name == "simcse" else LOSSES[name][0]) for name in only}
    runs = run_rows(recipes, seeds, out, threads)

    def shown(results: dict[str, Results]) -> Results:
        names = {"trec": "TREC 6", "trec-fine": "TREC 50"}
        probes = {column: {"accuracy": results[task]["accuracy"]} for task, column in names.items()}
        return {**with_mean({task: results[task] for task in STS}, STS), **probes}

    rows = {LABELS[name]: [shown(run["after"]) for run in found] for name, found in runs.items()}
    print(markdown({"untrained": [shown(runs[only[0]][0]["before"])]} | rows, LABELS[only[0]]))
    print(f"\n{len(lines):,} sentences. Chosen on STS-B dev after steps: {chosen_steps(runs)}")
    print(*figure(runs, out), sep="\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
