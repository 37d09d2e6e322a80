"""The rows of GCLSR at the small scale: fewer sentences, half the epochs, narrow layers, word vectors trained here."""

from __future__ import annotations

import math
from typing import Any

from multicse.data.streams.text import EDATextStream, TextStream
from multicse.data.word_vectors import is_word_vectors, train_vectors
from multicse.models.word_module import split
from multicse.pipelines import gclsr, parts
from multicse.reproduction.tables.offline import Offline
from multicse.trainers.recipe import Recipe

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
        "encoder.vectors": word_vectors(offline),
        "encoder.filters": 30,
        "method.width": 512,
        "method.bottleneck": 128,
        "streams.text.shards": _rewritten(text.columns, offline)
        if len(text.columns) == 2
        else offline.lines(offline.sentences(FEWER), f"wiki-{FEWER}"),
        "streams.text.batch_size": batch,
        "evaluation.data": str(offline.data / "sts"),
        "evaluation.every": SHORTER * math.ceil(FEWER / batch) // 4,
        "run.epochs": SHORTER,
        "run.gpus_per_worker": 0,
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
