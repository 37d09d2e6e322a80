"""The rows of clip.toml at the small scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from multicse.pipelines.clap import AUDIOCAPS, CLOTHO, MUSICCAPS
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import read_tables, small_changes
from multicse.trainers.recipe import Recipe

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
