"""What the tables of nonling.toml are measured and drawn by, and its rows at the small scale."""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multicse.data.shards import RawSample, ShardSet, read
from multicse.data.streams import decode
from multicse.evaluation.load import load_model
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.tasks.retrieval import read_captions
from multicse.pipelines import parts, registry
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import Table, Values, content, read_tables, small_changes
from multicse.reproduction.tasks.retrieval import nearest_captions, neighbour_table
from multicse.trainers.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = Path(__file__).with_suffix(".toml")
NEAREST = {one["query"]: (one["simcse"], one["visualcse"]) for one in content(FILE)["nearest"]}
"""Table D.1: query -> what the paper's SimCSE and VisualCSE find, an asterisk for what it leaves out."""


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
        float(sum(any(fnmatch(text, pattern) for pattern in theirs) for text, _ in near))
        for near, both in zip(found, NEAREST.values(), strict=True)
        for theirs in both
    ]
    return dict(zip(table.columns, counts, strict=True))


TABLES = read_tables(FILE, globals())


# ---------------------------------------------------------------------------------------------------------- the small scale

NLI_SHARE = 27
"""How many times as many triples the paper's NLI has as the one at hand."""


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row on the small encoder of 2 layers: 200 steps of 64 sentences and 48 pictures or sounds, chosen on STS-B dev.

    It keeps what rows vary: variant, losses, supervision, noise, language, mix-up and masks.
    """
    demo: Recipe = registry.load(recipe.paper).RECIPES["demo"]()
    given, small = recipe.flat(), demo.flat()
    changes: dict[str, Any] = {}
    method = "method" if recipe.paper == "simcse" else "method.text"
    if given[f"{method}.supervised"]:
        changes = {"streams.text": parts.nli(64), f"{method}.supervised": True, "run.epochs": recipe.run.epochs}
        if first := given["streams.text.first"]:
            changes["streams.text.first"] = first // NLI_SHARE
        if given["streams.text.kind"] == "noisy_text":
            changes |= {"streams.text.kind": "noisy_text", "streams.text.lexicon": "small"}
            noise = (f"streams.text.{name}" for name in ("deletion", "insertions", "swaps"))
            changes |= {path: given[path] for path in noise}
    changes |= small_changes(FILE, recipe, offline)
    if (select := recipe.evaluation.select or "").startswith("hub:"):
        pairs = offline.data / "stsb_multi" / f"stsb-{select.split(':')[2]}-dev.tsv.gz"
        changes["evaluation.select"] = f"pairs:{pairs}"
    if "audio" in recipe.streams:
        for axis in ("bins", "frames"):  # masks as wide a share
            share = given[f"streams.audio.mask_{axis}"] / given[f"streams.audio.{axis}"]
            changes[f"streams.audio.mask_{axis}"] = round(share * small[f"streams.audio.{axis}"])
    return demo.changed(changes)
