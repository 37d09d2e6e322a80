"""Every table and figure of SG-BERT (Kim et al., ACL 2021), and its rows at the small scale."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multicse.data.streams.eda import eda
from multicse.evaluation.figures.basic import COLOURS, legend, new_figure
from multicse.evaluation.load import fit_sentences, load_model, parse
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.tables import ORDERS, TRANSFER
from multicse.evaluation.task import encode_once
from multicse.evaluation.tasks.sts import PairTask
from multicse.pipelines import parts
from multicse.pipelines.sgbert import ENCODERS, SPANISH, TRACKS
from multicse.reproduction.encoders.layers import layer_scores
from multicse.reproduction.figures.curves import layer_curves
from multicse.reproduction.figures.drawings import extreme_pairs
from multicse.reproduction.tables import sgbert_numbers as paper
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import Numbers, Row, Table, Values, average_only, listed
from multicse.trainers.recipe import Recipe
from multicse.trainers.sgbert import SGBERTConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEVEN = ORDERS["stsb-first"]
SEEDS = (1, 2, 3, 4, 1234, 2345, 3456, 7890)
STSB, NLI = "shards/stsb-sentences", "shards/nli-sentences"
STS_OPEN = "whether subsets of STS12-16 are concatenated (here they are, as in SimCSE) or averaged"

UNTUNED = {"CLS": "@cls", "Mean": "@mean", "WK": "@wk-released", "Flow": f"@last2+flow:{STSB}"}
TRAINED = {"BT": "bt", "SG": "sg", "SG-OPT": "sg-opt"}
"""Rows that each encoder has; what follows its name as a model, and as a recipe."""


def _row(encoder: str, name: str, numbers: Numbers, prefix: str = "") -> Row:
    if name in UNTUNED:
        return Row(prefix + name, model=ENCODERS[encoder] + UNTUNED[name], paper=numbers)
    recipe = f"sgbert/{encoder}-{TRAINED[name]}"
    return Row(prefix + name, "sgbert/bert-base" if recipe == "sgbert/bert-base-sg-opt" else recipe, paper=numbers)


def _rows(tables: Mapping[str, Mapping[str, Numbers]]) -> tuple[Row, ...]:
    """Rows of several encoders: the encoder in the paper's words -> the row's name -> its numbers."""
    return tuple(
        _row(encoder.lower(), name, numbers, f"{encoder} ")
        for encoder, rows in tables.items()
        for name, numbers in rows.items()
    )


def _quoted(label: str, numbers: Numbers, source: str) -> Row:
    return Row(label, paper=numbers, lacks=f"the paper quotes {source}")


def _on_sts(title: str, rows: Iterable[Row], left: str = STS_OPEN, **more: Any) -> Table:
    return Table(title, SEVEN, tuple(rows), average=True, seeds=SEEDS, open=left, **more)


def _settings(title: str, settings: Mapping[str, float], where: str) -> Table:
    numbers = {name: (value,) for name, value in settings.items()}
    return listed(title, ("value",), f"a setting, nothing to measure; {where} it", numbers)


def _drawing(title: str) -> Table:
    return Table(title, (), (Row("a drawing", lacks="nothing to measure; the method is trainers/sgbert.py"),))


# ------------------------------------------------------------------------------------------------- what is no task's number


def seconds(model: str, table: Table, data: Path) -> dict[str, float]:
    """Seconds of training and of encoding both sentences of all pairs of STS-B's test part.

    A trained model's training is that of its run, evaluations included, a flow's that of loading and fitting; others have 0.
    """
    start = time.perf_counter()
    encoder = load_model(model, batch_size=16)
    training = time.perf_counter() - start if parse(model).post else 0.0
    if (run := Path(model).parent / "summary.json").is_file():
        training = json.loads(run.read_text())["train_seconds"]
    task = _pairs("stsb-test", data)
    start = time.perf_counter()
    encoder.encode([*task.pairs.first, *task.pairs.second])
    return {"training": training, "inference": time.perf_counter() - start}


def layers(model: str, table: Table, data: Path) -> dict[str, float]:
    """Spearman x 100 on STS-B's test part of every layer by the model's pooling; of a trained model, its own everywhere."""
    task, spec = _pairs("stsb-test", data), parse(model)
    if spec.pooling is None:
        return dict.fromkeys(table.columns, task.score(load_model(model)).metrics["spearman"])
    curve = layer_scores(spec.place, [task])[spec.pooling]
    return {layer: curve[int(layer)][task.name]["spearman"] for layer in table.columns}


def draw_layers(table: Table, values: Values) -> Figure:
    """Figure 1: a curve for each pooling, a line for each trained model."""
    means = {label: [float(np.mean(runs)) for runs in row.values()] for label, row in values.items()}
    trained = {row.label for row in table.rows if row.recipe}
    curves = {label: curve for label, curve in means.items() if label not in trained}
    return layer_curves(curves, {label: curve[0] for label, curve in means.items() if label in trained})


def draw_domains(table: Table, values: Values) -> Figure:
    """Figure 4: STS-B and the average over the sets, a bar for each model and the sentences that it was trained on."""
    figure = new_figure()
    axes = figure.add_subplot()
    for i, (label, row) in enumerate(values.items()):
        means = {column: float(np.mean(runs)) for column, runs in row.items()}
        heights = [means["stsb-test"], float(np.mean([*means.values()]))]
        axes.bar(np.arange(2) + 0.2 * i, heights, 0.2, color=COLOURS[i], label=label)
    axes.set_xticks(np.arange(2) + 0.2 * (len(values) - 1) / 2, ["STS-B", "average"])
    axes.set(ylabel="Spearman x 100")
    legend(axes)
    return figure


def extremes(model: str, table: Table, data: Path) -> dict[str, float]:
    """Mean cosine x 100 of the pairs of STS-B's development part that are rated 5, and of those rated 0."""
    task = _pairs("stsb-dev", data)
    cosines = 100 * task.similarities(load_model(model))
    return {"rated 5": float(cosines[task.gold == 5].mean()), "rated 0": float(cosines[task.gold == 0].mean())}


def plane(model: str, data: Path) -> Figure:
    """Figures 5 and 6: 20 pairs of STS-B's development part that are rated 5 and 20 rated 0, by t-SNE."""
    task = _pairs("stsb-dev", data)
    return extreme_pairs(encode_once([task], load_model(model)), task)


def _pairs(name: str, data: Path) -> PairTask:
    (task,) = make_tasks([name], data)
    assert isinstance(task, PairTask)
    return task


# -------------------------------------------------------------------------------------------------------------- the tables

LAYERS = tuple(map(str, range(13)))

TABLES: dict[str, Table] = {
    "T1": _on_sts(
        "STS, Spearman of the cosine",
        (
            _quoted("GloVe Mean", (58.02, 53.76, 55.14, 70.66, 59.73, 68.25, 63.66, 61.32), "Reimers and Gurevych (2019)"),
            _quoted("USE", (74.92, 76.69, 64.49, 67.80, 64.61, 76.83, 73.18, 71.22), "Reimers and Gurevych (2019)"),
            *_rows(paper.STS),
        ),
    ),
    "T2": Table(
        "SemEval 2014, task 10, Spanish: Pearson of the cosine, subsets weighted by their size",
        (f"{SPANISH}#pearson_wmean",),
        (
            _quoted("UMCC-DLSI-run2 (rank 1)", (80.69,), "the contest"),
            *(_row("mbert", name, (number,), "MBERT ") for name, number in paper.SPANISH_OF_2014.items()),
        ),
        names=("Spanish",),
        seeds=SEEDS,
        mini=("pairs:{data}/stsb_multi/stsb-es-test.tsv.gz#pearson",),
        open="that the two subsets are weighted is the contest's rule, not a word of the paper",
    ),
    "T3": Table(
        "SemEval 2017, task 1: Pearson of the cosine",
        tuple(f"{track}#pearson" for track in TRACKS),
        (
            _quoted("Cosine baseline", (60.45, 71.17, 72.78), "the contest"),
            _quoted("ENCU (rank 1)", (74.40, 85.59, 85.18), "the contest"),
            *(_row("mbert", name, numbers, "MBERT ") for name, numbers in paper.TRACKS_OF_2017.items()),
        ),
        names=("Arabic", "Spanish", "English"),
        seeds=SEEDS,
        mini=tuple(f"pairs:{{data}}/stsb_multi/stsb-{language}-test.tsv.gz#pearson" for language in ("es", "en")),
    ),
    "T4": Table(
        "Transfer tasks, accuracy of a classifier with 50 hidden units",
        TRANSFER,
        tuple(
            _row(encoder.lower(), name, numbers, f"{encoder} ")
            if name in UNTUNED
            else Row(f"{encoder} {name}", f"sgbert/{encoder.lower()}-transfer", paper=numbers)
            for encoder, rows in paper.ACCURACIES.items()
            for name, numbers in rows.items()
        ),
        average=True,
        seeds=SEEDS,
        protocol="released",
        hidden=50,
        mini=("cr", "trec", "mrpc"),
        open="the amount of NLI text (here as many steps as STS-B makes) and the first layers left out (here 0 to 3)",
    ),
    "T5": _on_sts(
        "The losses and settings of SG-OPT: average over the seven STS sets",
        (Row(label, f"sgbert/{name}", paper=average_only(average)) for label, (name, average) in paper.ABLATION.items()),
        reference="SG-OPT (L_opt3)",
    ),
    "T6": Table(
        "Seconds of training and of encoding STS-B's test part, 16 sentences at a time",
        ("training", "inference"),
        (
            Row("Mean pooling", model=f"{ENCODERS['bert-base']}@mean", paper=(None, 13.94)),
            Row("WK pooling", model=f"{ENCODERS['bert-base']}@wk-released", paper=(None, 197.03)),
            Row("Flow", model=f"{ENCODERS['bert-base']}{UNTUNED['Flow']}", paper=(155.37, 28.49)),
            Row("SG-OPT", "sgbert/bert-base", paper=(455.02, 10.51)),
        ),
        measure=seconds,
        open="what the clock holds; the paper's machine has a Titan Xp",
    ),
    "T7": _on_sts(
        "Back-translation and self-guidance together",
        (
            _row("bert-base", "BT", paper.STS["BERT-base"]["BT"]),
            _row("bert-base", "SG-OPT", paper.STS["BERT-base"]["SG-OPT"]),
            Row("BT + SG-OPT", "sgbert/bt-sg-opt", paper=(77.99, 68.75, 68.49, 80.00, 71.34, 81.71, 77.43, 75.10)),
        ),
        reference="SG-OPT",
    ),
    "T8": _settings("Settings of training", paper.SETTINGS, "`sgbert/bert-base` has"),
    "T9": _settings("Settings of SentEval", paper.SENTEVAL_SETTINGS, "`--protocol released --hidden 50` have"),
    "T10": Table(
        "Fine-tuned on GLUE; of its validation part the first tenth is for choice, the rest for the score",
        tuple(f"finetune:glue/{name}.tsv#{metric}" for name, metric in paper.GLUE.items()),
        (
            Row("BERT-base", model=f"{ENCODERS['bert-base']}@cls", paper=(90.97, 91.08, 56.63, 87.09, 62.50)),
            Row("SG-OPT", "sgbert/bert-base", paper=(91.28, 91.68, 56.36, 86.96, 62.75)),
        ),
        names=("QNLI", "SST2", "COLA", "MRPC", "RTE"),
        seeds=SEEDS,
        mini=tuple(f"finetune:{{data}}/nli/cad_dev.tsv.gz#{metric}" for metric in ("accuracy", "matthews")),
        open="the metrics (here GLUE's; of the two of MRPC the accuracy) and all settings (here 3 epochs of 32 at 2e-5)",
    ),
    "T11": _on_sts("STS with RoBERTa", _rows(paper.STS_OF_ROBERTA)),
    "F1": Table(
        "Layers and poolings of BERT-base on STS-B's test part; the text has four of the curves' values",
        LAYERS,
        (
            Row("CLS", model=f"{ENCODERS['bert-base']}@cls", paper=(*[None] * 10, 16.71, None, 20.30)),
            Row("Mean", model=f"{ENCODERS['bert-base']}@mean", paper=(*[None] * 12, 47.29)),
            Row("Max", model=f"{ENCODERS['bert-base']}@max", paper=(None, None, 63.19, *[None] * 10)),
            Row("SG", "sgbert/bert-base-sg", paper=(75.08,) * 13),
            Row("SG-OPT", "sgbert/bert-base", paper=(77.23,) * 13),
        ),
        seeds=SEEDS,
        measure=layers,
        mini=LAYERS[:3],
        draw=draw_layers,
    ),
    "F2": _drawing("The two copies of BERT"),
    "F3": _drawing("The four factors of NT-Xent"),
    "F4": _on_sts(
        "Trained on sentences of the domain (STS-B) or of another (NLI)",
        (
            Row("Flow, STS-B", model=f"{ENCODERS['bert-base']}@last2+flow:{STSB}", paper=paper.STS["BERT-base"]["Flow"]),
            Row("Flow, NLI", model=f"{ENCODERS['bert-base']}@last2+flow:{NLI}", paper=(59.19, *[None] * 6, 64.58)),
            Row("SG-OPT, STS-B", "sgbert/bert-base", paper=paper.STS["BERT-base"]["SG-OPT"]),
            Row("SG-OPT, NLI", "sgbert/nli", paper=(75.40, *[None] * 6, 72.99)),
        ),
        draw=draw_domains,
        left="the amount of NLI text (here as many steps as STS-B makes); the paper gives those of NLI as differences",
    ),
    "F5": Table(
        "STS-B's development pairs: mean cosine x 100, and 40 of them in a t-SNE plane, a picture for each model",
        ("rated 5", "rated 0"),
        (Row("BERT-base", model=f"{ENCODERS['bert-base']}@cls"), Row("SG-OPT", "sgbert/bert-base")),
        measure=extremes,
        picture=plane,
        open="which pairs, t-SNE's settings, and the pooling of the untuned model (here [CLS])",
    ),
    "F6": Table(
        "The same of SBERT-base",
        ("rated 5", "rated 0"),
        (Row("SBERT-base", model=f"{ENCODERS['sbert-base']}@mean"),),
        measure=extremes,
        picture=plane,
        open="as in Figure 5 (here its own mean pooling)",
    ),
}


# ---------------------------------------------------------------------------------------------------------- the small scale


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row on the small encoder of 2 layers: 100 steps of 16 sentences, chosen on STS-B's development part."""
    method = recipe.method
    assert isinstance(method, SGBERTConfig)
    return recipe.changed(
        {
            "encoder.path": parts.SMALL_ENCODER,
            "method.head_width": min(method.head_width, 768),
            "method.first_layer": min(method.first_layer, 1),
            "streams.text.shards": _sentences(recipe.streams["text"].shards, offline),
            "optim.text.lr": 3e-4,
            "evaluation.data": str(offline.data / "senteval" / "downstream"),
            "run.max_steps": 100,
            "run.gpus_per_worker": 0,
            "run.checkpoint_every": None,
        },
    )


def mini_model(spec: str, offline: Offline) -> str:
    """The small encoder, with all its layers for WK and the sentences at hand for a flow."""
    how, _, sentences = spec[len(next(path for path in ENCODERS.values() if spec.startswith(path))) :].partition(":")
    fit = f":{_sentences(sentences, offline)}" if sentences else ""
    return parts.SMALL_ENCODER + how.replace("@wk", "@wk0") + fit


@cache
def _sentences(shards: str, offline: Offline) -> str:
    """What stands in for the paper's shards: of translations, STS-B's sentences with words swapped and left out."""
    if shards == NLI:
        return offline.nli_sentences()
    if shards == STSB:
        return offline.stsb()
    rng = np.random.default_rng(0)
    sentences = fit_sentences(offline.stsb())
    pairs = [(sentence, " ".join(eda(sentence.split(), rng, lambda word: ()))) for sentence in sentences]
    return offline.table(("original", "translation"), pairs, "stsb-translated")
