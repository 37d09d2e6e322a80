"""What the tables of gclsr.toml are measured and drawn by, and its rows at the small scale.

That is fewer sentences, half the epochs, narrow layers, and word vectors trained here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from multicse.data.streams.text import EDATextStream, TextStream
from multicse.data.word_vectors import is_word_vectors, open_vectors, train_vectors
from multicse.evaluation.load import parse
from multicse.models.pwva import background_noise, fourier, gaussian_noise, random_zeros
from multicse.models.word_module import hashed_vectors, split, word_hash
from multicse.pipelines import gclsr, parts
from multicse.reproduction.figures.curves import learning_curves
from multicse.reproduction.figures.words import attention_importance, augmented_vector, word_importance
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import Table, Values, read_tables, small_changes
from multicse.trainers.engine.tracking import histories
from multicse.trainers.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPOCHS = 20

AUGMENTATIONS: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "GWN": ("Gaussian white noise", partial(gaussian_noise, form="released")),
    "RZS": ("random zero setting", partial(random_zeros, form="released")),
    "IFFT": ("inverse Fourier transform", lambda words, generator: fourier(words, "released")),
    "RBN": ("random background noise", partial(background_noise, form="released")),
}
SENTENCE = "the performances are immaculate, with roussillon providing comic relief"
"""Of the movie reviews: the one whose largest weights section 3.2 names."""


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def change(model: str, table: Table, data: Path) -> dict[str, float]:
    """How far each augmentation moves a word: |w' - w| / |w| in percent, the mean over the first 1,000 words of a file."""
    words = torch.from_numpy(np.array(open_vectors(parse(model).place).vectors[:1000]))
    moved = {name: augment(words, generator=_generator()) - words for name, (_, augment) in AUGMENTATIONS.items()}
    return {name: 100 * float((step.norm(dim=1) / words.norm(dim=1)).mean()) for name, step in moved.items()}


def draw_augmentations(table: Table, values: Values) -> Figure:
    """Figure 2, on the random vector that a word without one has, which needs no file."""
    word = hashed_vectors(torch.tensor([word_hash(SENTENCE.split()[-1])]), 300)
    changed = {title: augment(word, generator=_generator())[0].numpy() for title, augment in AUGMENTATIONS.values()}
    return augmented_vector(word[0].numpy(), changed)


def importance(model: str, table: Table, data: Path) -> dict[str, float]:
    """What Algorithm 1 gives each word of `SENTENCE`; 0 where it has no vector."""
    vectors = open_vectors(parse(model).place)
    known = [word for word in split(SENTENCE) if word in vectors.row]
    weights = attention_importance(vectors.vectors[[vectors.row[word] for word in known]])
    return dict.fromkeys(table.columns, 0.0) | dict(zip(known, weights.tolist(), strict=True))


def draw_importance(table: Table, values: Values) -> Figure:
    """Figure 3."""
    return word_importance([(list(row), [value for (value,) in row.values()]) for row in values.values()])


def curve(model: str, table: Table, data: Path) -> dict[str, float]:
    """Spearman on STS-B dev after each epoch, from the journal of the run that made the model."""
    history = histories(Path(model).parent / "journal.jsonl")["stsb-dev"]
    last = history[-1][0]
    return {str(round(EPOCHS * step / last)): metrics["spearman"] for step, metrics in history}


def draw_curves(table: Table, values: Values) -> Figure:
    """Figure 4: the mean over seeds."""
    curves = {label: {int(epoch): float(np.mean(runs)) for epoch, runs in row.items()} for label, row in values.items()}
    return learning_curves(curves, "epoch", "STS-B dev, Spearman x 100")


FILE = Path(__file__).with_suffix(".toml")
TABLES = read_tables(FILE, globals())


# ---------------------------------------------------------------------------------------------------------- the small scale

BERT, ROBERTA = "google-bert/bert-base-uncased", "FacebookAI/roberta-base"
FEWER, SHORTER, SMALLER = 640, 10, 8
"""Sentences, epochs, and by how much batches are smaller: 100 steps where the paper has 400."""


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row with 640 sentences, half the epochs, an eighth of its batch, narrow layers, and vectors from 20,000 sentences.

    WikiSplit's rewritten sentences stand in for translations, a table of some 200 words for WordNet.
    """
    text, optim = recipe.streams["text"], recipe.optim["text"]
    assert isinstance(text, TextStream)
    batch = text.batch_size // SMALLER
    changes: dict[str, Any] = {
        **small_changes(FILE, recipe, offline),
        "encoder.vectors": word_vectors(offline),
        "streams.text.shards": _rewritten(text.columns, offline)
        if len(text.columns) == 2
        else offline.lines(offline.sentences(FEWER), f"wiki-{FEWER}"),
        "streams.text.batch_size": batch,
        "evaluation.every": SHORTER * math.ceil(FEWER / batch) // 4,
        "run.epochs": SHORTER,
    }
    rates = {"optim.text.lr": optim.lr, "optim.text.groups.predictor.lr": optim.groups["predictor"].lr}
    changes |= {path: rate / SMALLER for path, rate in rates.items() if rate == optim.lr}
    if isinstance(text, EDATextStream):
        changes["streams.text.lexicon"] = "small"
    return recipe.changed(changes)


def mini_model(spec: str, offline: Offline) -> str:
    """Word vectors of 100 dimensions for the published ones, the small encoder for BERT and RoBERTa."""
    if spec.startswith(gclsr.VECTORS):
        return word_vectors(offline) + spec.removeprefix(gclsr.VECTORS)
    return parts.SMALL_ENCODER + spec.removeprefix(BERT).removeprefix(ROBERTA)


def word_vectors(offline: Offline, sentences: int | None = 20_000, dim: int = 100, epochs: int = 10) -> str:
    """The folder of word vectors of so many sentences of Wikipedia, None: of all; trained where it is not there yet."""
    folder = offline.shards / f"word-vectors-{sentences or 'all'}-{dim}-{epochs}"
    if not is_word_vectors(folder):
        train_vectors(offline.sentences(sentences), folder, split=split, seed=1, dim=dim, epochs=epochs)
    return str(folder)


def _rewritten(columns: tuple[str, ...], offline: Offline) -> str:
    rows = offline.rows(offline.data / "text_unlabeled" / "wikisplit_pairs.en.tsv.gz")[:FEWER]
    pairs = [(row["complex"], f"{row['simple1']} {row['simple2']}") for row in rows]
    return offline.table(columns, pairs, f"rewritten-{FEWER}")
