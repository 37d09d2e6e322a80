"""What the figures of clip.toml are drawn by, and its rows at the small scale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from multicse.pipelines.clap import AUDIOCAPS, CLOTHO, MUSICCAPS
from multicse.reproduction.figures.scores import alignment_text_uniformity, text_item_uniformity
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import Table, Values, read_tables, small_changes
from multicse.trainers.recipe import Recipe


def figure_2(table: Table, values: Values) -> Figure:
    """Alignment against the uniformity of texts, a mark for each run."""
    return alignment_text_uniformity(_runs(values))


def figure_3(table: Table, values: Values) -> Figure:
    """The uniformity of items against that of texts, a mark for each run."""
    return text_item_uniformity(_runs(values))


def _runs(values: Values) -> dict[str, list[Mapping[str, float]]]:
    models: dict[str, list[Mapping[str, float]]] = {}
    for label, columns in values.items():
        metrics = [column.partition("#")[2] for column in columns]
        models[label] = [dict(zip(metrics, run, strict=True)) for run in zip(*columns.values(), strict=True)]
    return models


FILE = Path(__file__).with_suffix(".toml")
TABLES = read_tables(FILE, globals())


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row with its losses, variant and share of warm-up (of sounds also its rate), on small towers and sets."""
    changes = small_changes(FILE, recipe, offline)
    if recipe.paper == "clap":  # the rate and the share of the run that is warm-up stay in proportion
        clips = {f"shards/{data.name}-train": data.clips for data in (CLOTHO, AUDIOCAPS, MUSICCAPS)}
        given: Any = recipe.optim["pairs"]
        steps = recipe.steps(clips[recipe.streams["pairs"].shards])
        changes["optim.pairs.lr"] = 1e-3 * given.lr / 9e-5
        if given.warmup >= 1:
            changes["optim.pairs.warmup"] = round(given.warmup / steps * changes["run.max_steps"])
    return recipe.changed(changes)
