"""What the tables of gclsr.toml are measured and drawn by, and its rows at the small scale.

That is fewer sentences, half the epochs, narrow layers, and word vectors trained here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from multicse.data.word_vectors import open_vectors
from multicse.evaluation.load import parse
from multicse.models import word_module
from multicse.models.pwva import background_noise, fourier, gaussian_noise, random_zeros
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import Table, read_tables, small_changes
from multicse.trainers.engine.figures import histories
from multicse.trainers.recipe import Recipe

EPOCHS = 20

AUGMENTATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "GWN": partial(gaussian_noise, form="released"),
    "RZS": partial(random_zeros, form="released"),
    "IFFT": lambda words, generator: fourier(words, "released"),
    "RBN": partial(background_noise, form="released"),
}
SENTENCE = "the performances are immaculate, with roussillon providing comic relief"
"""Of the movie reviews: the one whose largest weights section 3.2 names."""


def change(model: str, table: Table, data: Path) -> dict[str, float]:
    """How far each augmentation moves a word: |w' - w| / |w| in percent, the mean over the first 1,000 words of a file."""
    words = torch.from_numpy(np.array(open_vectors(parse(model).place).vectors[:1000]))
    seeds = {name: torch.Generator().manual_seed(0) for name in AUGMENTATIONS}
    moved = {name: augment(words, generator=seeds[name]) - words for name, augment in AUGMENTATIONS.items()}
    return {name: 100 * float((step.norm(dim=1) / words.norm(dim=1)).mean()) for name, step in moved.items()}


def attention_importance(vectors: np.ndarray) -> np.ndarray:
    """What GCLSR's attention gives each word of a sentence, of their vectors (L, d); there is no padding."""
    words = torch.from_numpy(np.asarray(vectors, dtype=float))[None]
    return word_module.importance(words, torch.ones(words.shape[:2]), words.shape[1])[0].numpy()


def importance(model: str, table: Table, data: Path) -> dict[str, float]:
    """What Algorithm 1 gives each word of `SENTENCE`; 0 where it has no vector."""
    vectors = open_vectors(parse(model).place)
    known = [word for word in word_module.split(SENTENCE) if word in vectors.row]
    weights = attention_importance(vectors.vectors[[vectors.row[word] for word in known]])
    return dict.fromkeys(table.columns, 0.0) | dict(zip(known, weights.tolist(), strict=True))


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
