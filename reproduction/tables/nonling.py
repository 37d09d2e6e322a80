"""Every table and figure of NonLing-CSE (Jian et al., NeurIPS 2022).

The paper's numbers were made by the released code, so its rows run the recipes `...-released`. Tables 1, 2 and 6 also have a
row for the text as printed and one for what it means, repaired.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multicse.data.shards import RawSample, ShardSet, read
from multicse.data.streams import decode
from multicse.evaluation.load import load_model
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.tables import SEVEN, TRANSFER
from multicse.evaluation.tasks.retrieval import read_captions
from multicse.pipelines import registry
from multicse.pipelines.nonlingcse import whole
from multicse.reproduction.tables.nonling_mini import mini as mini
from multicse.reproduction.tables.nonling_numbers import (
    BATCHES,
    CIFAR,
    LANGUAGES,
    NEAREST,
    REPEATED,
    SIMCLR,
    STS,
    SUPERVISED,
    TRANSFERRED,
)
from multicse.reproduction.tables.table import Numbers, Row, Table, Values, average_only, listed
from multicse.reproduction.tasks.retrieval import nearest_captions, neighbour_table
from multicse.trainers.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENCODERS = {"bert-base": "BERT-base", "roberta-base": "RoBERTa-base", "roberta-large": "RoBERTa-large"}
NAMES = {"simcse": "SimCSE", "visualcse": "VisualCSE", "audiocse": "AudioCSE"}
SUBSETS = (3_000, 10_000, 30_000, 100_000)
"""Triples of NLI in Figure 2, and all of them."""
NOISE = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Shares of deleted words in Figure 3."""
SEED = (42,)
"""Of all tables but Table 3, whose five are not said."""


# ------------------------------------------------------------------------------------------------------------------- rows


def simcse(encoder: str, paper: Numbers) -> Row:
    """The baseline with an encoder."""
    return Row(f"SimCSE-{ENCODERS[encoder]}", f"simcse/{encoder}", paper=paper)


def released(method: str, encoder: str, paper: Numbers, changes: Mapping[str, Any] | None = None, what: str = "") -> Row:
    """A row as the authors ran it, against SimCSE with the same encoder."""
    label, recipe = f"{NAMES[method]}-{ENCODERS[encoder]}{what}", f"{method}/{encoder}-released"
    return Row(label, recipe, changes or {}, paper=paper, reference=f"SimCSE-{ENCODERS[encoder]}")


def variants(method: str, recipe: str, label: str, paper: Numbers, reference: str) -> tuple[Row, ...]:
    """As the authors ran it, as printed, repaired."""
    how = {"-released": "", "-paper": ", as printed", "": ", repaired"}
    return tuple(
        Row(label + what, f"{method}/{recipe}{suffix}", paper=paper, reference=reference) for suffix, what in how.items()
    )


def on_sts(title: str, rows: Iterable[Row], left: str, **more: Any) -> Table:
    """A table on the seven STS sets."""
    return Table(title, SEVEN, tuple(rows), average=True, open=left, **({"seeds": SEED} | more))


def main_table(method: str) -> Table:
    """Table 1 or 2."""
    rows: list[Row] = []
    for encoder, name in ENCODERS.items():
        rows.append(simcse(encoder, STS["simcse"][encoder]))
        rows += variants(method, encoder, f"{NAMES[method]}-{name}", STS[method][encoder], rows[-1].label)
    title = f"Unsupervised {NAMES[method]} and SimCSE on the seven STS sets"
    return on_sts(
        title, rows, "weights of the loss (here the released scripts'); the published numbers are the released code's"
    )


def supcon_and_simclr(method: str) -> Table:
    """Table 4 or G.1."""
    stream = {"visualcse": "image", "audiocse": "audio"}[method]
    rows: list[Row] = []
    for encoder, simclr in SIMCLR[method].items():
        label = ENCODERS[encoder].removesuffix("-base")
        recipe = f"{method}/{encoder}-released"
        rows += [
            Row(f"{label} (SimCLR)", recipe, {f"method.{stream}.loss": "simclr"}, paper=simclr),
            Row(f"{label} (SupCon)", recipe, paper=STS[method][encoder], reference=f"{label} (SimCLR)"),
        ]
    title = f"{NAMES[method]} with SimCLR in place of SupCon"
    return on_sts(title, rows, "the released SupCon's targets are unrelated to the classes")


def language(name: str, paper: Mapping[str, float]) -> tuple[Row, Row]:
    """Table 5, with all of the authors' code."""
    changes = whole(registry.load("visualcse").RECIPES[name](), "released")
    baseline = Row(f"{name.title()}, SimCSE", f"simcse/{name}", paper=(paper["simcse"],))
    ours = f"{name.title()}, VisualCSE"
    return baseline, Row(ours, f"visualcse/{name}", changes, paper=(paper["visualcse"],), reference=baseline.label)


def supervised(label: str, changes: Mapping[str, Any] | None = None, paper: Numbers = ()) -> Row:
    """A row of Figures 2 and 3: SimCSE, supervised by NLI with changes."""
    return Row(label, "simcse/supervised-bert-base", changes or {}, paper=paper)


UNSUPERVISED = Row("VisualCSE, without NLI", "visualcse/bert-base-released", paper=STS["visualcse"]["bert-base"])
NOISY = {"streams.text.kind": "noisy_text"}
INSERTED = {"streams.text.insertions": 2, "streams.text.swaps": 2}


# ---------------------------------------------------------------------------------------------------------------- figures


def against_supervision(table: Table, values: Values) -> Figure:
    """The average over the measured sets along the rows; the last row, which has no supervision, as a line."""
    from multicse.evaluation.figures.basic import COLOURS, legend, new_figure

    means = {label: float(np.mean(list(columns.values()))) for label, columns in values.items() if any(columns.values())}
    reference = table.rows[-1].label
    supervised = [row.label for row in table.rows[:-1] if row.label in means]
    figure = new_figure()
    axes = figure.add_subplot()
    axes.plot(supervised, [means[label] for label in supervised], marker="o", color=COLOURS[0], label="supervised SimCSE")
    if reference in means:
        axes.axhline(means[reference], color=COLOURS[3], linestyle="--", label=reference)
    axes.set(ylabel="average Spearman x 100")
    legend(axes)
    return figure


def alignment_and_uniformity(table: Table, values: Values) -> Figure:
    """A point a model."""
    from multicse.evaluation.figures.basic import alignment_uniformity_scatter

    points = {label: [float(np.mean(runs)) for runs in columns.values()] for label, columns in values.items()}
    return alignment_uniformity_scatter({label: (align, uniform) for label, (align, uniform) in points.items()})


# --------------------------------------------------------------------------------------------------------------- measures


def chosen_on(model: str, table: Table, data: Path) -> dict[str, float]:
    """Spearman on the pairs on which the run chose its checkpoint; `model` is the run's export."""
    recipe = Recipe.from_json((Path(model).parent / "recipe.json").read_text(encoding="utf-8"))
    assert recipe.evaluation.select is not None
    (task,) = make_tasks([recipe.evaluation.select], data)
    return {table.columns[0]: task.score(load_model(model)).metrics["spearman"]}


def captions(data: Path) -> list[str]:
    """Those of Flickr30K: 145,000 beside the folder of evaluation data, else of the shards."""
    at_hand = data.resolve().parents[1] / "multi30k" / "captions5.train.en.tsv.gz"
    if at_hand.is_file():
        return read_captions(at_hand, ("c1", "c2", "c3", "c4", "c5"))
    shards = ShardSet.open("shards/flickr30k-train").shards
    samples = (sample for shard in shards for sample in read(shard, range(shard.samples)))
    return [
        caption
        for sample in samples
        if isinstance(sample, RawSample)
        for caption in decode.captions(sample.fields, sample.key)
    ]


def nearest(model: str, table: Table, data: Path) -> dict[str, float]:
    """For each query, how many of a model's nearest three captions are the paper's SimCSE's, and its VisualCSE's."""
    database = captions(data)
    found = nearest_captions(load_model(model), list(NEAREST), database)
    print(neighbour_table(list(NEAREST), found), file=sys.stderr)
    counts = [
        float(sum(any(fnmatch(neighbour.text, pattern) for pattern in theirs) for neighbour in near))
        for near, both in zip(found, NEAREST.values(), strict=True)
        for theirs in both
    ]
    return dict(zip(table.columns, counts, strict=True))


def nearest_row(which: int, label: str, recipe: str) -> Row:
    """Table D.1: how many of the captions that the paper prints of a model are those of each."""
    paper = (float(len(set(both[which]) & set(theirs))) for both in NEAREST.values() for theirs in both)
    return Row(label, recipe, paper=tuple(paper))


def settings() -> Table:
    """Table C.1."""
    names = (recipe.partition("/")[::2] for recipe in BATCHES)
    labels = (f"{NAMES[method]}-{ENCODERS[encoder]}" for method, encoder in names)
    columns = ("text batch", "text rate (1e-6)", "image, sound batch", "image, sound rate (1e-6)")
    lacks = "a setting, nothing to measure; the recipes of Tables 1 and 2 have it"
    return listed("Batches and rates", columns, lacks, dict(zip(labels, BATCHES.values(), strict=True)))


TABLES: dict[str, Table] = {
    "T1": main_table("visualcse"),
    "T2": main_table("audiocse"),
    "T3": on_sts(
        "The average over the STS sets with five seeds (paper: ± 0.90, 0.38, 0.18, 0.25; p 0.0235 and below 0.0001)",
        (
            row
            for encoder, (baseline, ours) in REPEATED.items()
            for row in (simcse(encoder, average_only(baseline)), released("visualcse", encoder, average_only(ours)))
        ),
        "the five seeds",
        seeds=5,
    ),
    "T4": supcon_and_simclr("visualcse"),
    "T5": Table(
        "Other languages, on the validation pairs of stsb_multi_mt",
        ("Spearman",),
        tuple(row for name, numbers in LANGUAGES.items() for row in language(name, numbers)),
        seeds=SEED,
        measure=chosen_on,
        open="batches, rates and weights (here BERT-base's), and on what the checkpoint is chosen (here the same pairs)",
    ),
    "T6": on_sts(
        "Supervised by NLI, on the seven STS sets",
        (
            supervised("SimCSE-BERT-base", paper=SUPERVISED["simcse"]),
            *(
                row
                for method in ("visualcse", "audiocse")
                for row in variants(
                    method, "supervised-bert-base", f"{NAMES[method]}-BERT-base", SUPERVISED[method], "SimCSE-BERT-base"
                )
            ),
        ),
        "all settings (here the released script's, with its temperature 0.05 but in the row as printed, 0.07)",
    ),
    "F2": on_sts(
        "Supervised SimCSE with parts of NLI, and unsupervised VisualCSE (text: equal at about 30,000 triples)",
        (
            *(supervised(f"{size:,}", {"streams.text.first": size}) for size in SUBSETS),
            supervised("all", paper=SUPERVISED["simcse"]),
            UNSUPERVISED,
        ),
        "the sizes, and which triples (here the first)",
        draw=against_supervision,
    ),
    "F3": on_sts(
        "Supervised SimCSE with noise [deletion, insertions, swaps] (text: below VisualCSE from 40 % deletions on)",
        (
            supervised("none", paper=SUPERVISED["simcse"]),
            *(supervised(f"[{share}, 2, 2]", {**NOISY, "streams.text.deletion": share, **INSERTED}) for share in NOISE),
            UNSUPERVISED,
        ),
        "the levels but [0.3, 2, 2], what is inserted (here synonyms), which sentences (here all three, spoiled once)",
        draw=against_supervision,
    ),
    "F4": Table(
        "Alignment and uniformity with BERT-base",
        ("stsb-test-geometry/alignment", "stsb-test-geometry/uniformity"),
        tuple(
            Row(f"{kind}{name}", f"{method}/{recipe}" + ("" if method == "simcse" else "-released"))
            for kind, recipe in (("", "bert-base"), ("sup-", "supervised-bert-base"))
            for method, name in NAMES.items()
        ),
        names=("alignment", "uniformity"),
        seeds=SEED,
        draw=alignment_and_uniformity,
        open="which part of STS-B (here the test pairs; pairs rated above 4 are positives)",
    ),
    "TC.1": settings(),
    "TD.1": Table(
        "The nearest three of 150,000 captions: how many are those of the paper's SimCSE and VisualCSE",
        tuple(f"query {number}, {name}" for number in (1, 2, 3) for name in ("SimCSE", "VisualCSE")),
        (
            nearest_row(0, "SimCSE-BERT-base", "simcse/bert-base"),
            nearest_row(1, "VisualCSE-BERT-base", "visualcse/bert-base-released"),
        ),
        seeds=SEED,
        measure=nearest,
        open="how the queries were drawn",
    ),
    "TE.1": Table(
        "Transfer: accuracy of SentEval's classifiers",
        TRANSFER,
        tuple(
            row
            for encoder, numbers in TRANSFERRED.items()
            for row in (
                simcse(encoder, numbers["simcse"]),
                *(released(method, encoder, numbers[method]) for method in ("visualcse", "audiocse")),
            )
        ),
        average=True,
        seeds=SEED,
        protocol="released",
        mini=("cr", "trec", "mrpc"),
        open="SentEval's default settings are not named (here 10 folds, Adam, no hidden layer)",
    ),
    "TG.1": supcon_and_simclr("audiocse"),
    "TH.1": on_sts(
        "VisualCSE with CIFAR's pictures, enlarged",
        (
            row
            for encoder, cifar in CIFAR.items()
            for row in (
                simcse(encoder, average_only(STS["simcse"][encoder][-1])),
                released("visualcse", encoder, average_only(cifar), {"streams.image.shards": "shards/cifar"}, " (CIFAR)"),
                released("visualcse", encoder, average_only(STS["visualcse"][encoder][-1]), what=" (ImageNet)"),
            )
        ),
        "which CIFAR, and how many pictures (here what shards/cifar holds)",
    ),
}
