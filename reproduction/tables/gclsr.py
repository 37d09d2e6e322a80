"""What the tables of gclsr.toml are measured and drawn by, and its rows at the small scale.

That is fewer sentences, half the epochs, narrow layers, and word vectors trained here.
"""

from __future__ import annotations

import math
from pathlib import Path

from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import Table, read_tables, small_changes
from multicse.trainers.engine.figures import histories
from multicse.trainers.recipe import Recipe

EPOCHS = 20


def curve(model: str, table: Table, data: Path) -> dict[str, float]:
    """Spearman on STS-B dev after each epoch, from the journal of the run that made the model."""
    history = histories(Path(model).parent / "journal.jsonl")["stsb-dev"]
    last = history[-1][0]
    return {str(round(EPOCHS * step / last)): metrics["spearman"] for step, metrics in history}


FILE = Path(__file__).with_suffix(".toml")
TABLES = read_tables(FILE, globals())


# ---------------------------------------------------------------------------------------------------------- the small scale

FEWER, SHORTER, SMALLER = 640, 10, 8
"""Sentences, epochs, and by how much batches are smaller: 100 steps where the paper has 400."""


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row with 640 sentences, half the epochs, an eighth of its batch, narrow layers, vectors from 20,000 sentences."""
    text, optim = recipe.streams["text"], recipe.optim["text"]
    batch = text.batch_size // SMALLER
    changes = small_changes(FILE, recipe, offline) | {
        "streams.text.batch_size": batch,
        "evaluation.every": SHORTER * math.ceil(FEWER / batch) // 4,
    }
    rates = {"optim.text.lr": optim.lr, "optim.text.groups.predictor.lr": optim.groups["predictor"].lr}
    return recipe.changed(changes | {path: rate / SMALLER for path, rate in rates.items() if rate == optim.lr})
