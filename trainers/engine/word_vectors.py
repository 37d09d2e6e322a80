"""The word vectors of a run: where they are, and how a run without any trains its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from data.errors import DecodeError
from data.shards import BadSample, ShardSet, read
from data.streams.decode import text
from data.streams.text import TextStream
from data.word_vectors import is_word_vectors, open_vectors, train_vectors
from models.config import WordEncoderConfig
from models.word_module import split
from trainers.recipe import Recipe

CHUNK = 512  # samples of a shard read at once
LOOKED_AT = 1000  # sentences whose words are counted before a run

log = logging.getLogger(__name__)


def vectors_of(recipe: Recipe, checkpoint: Path | None = None) -> Path | str:
    """The word vectors of a recipe: those it names, else the folder that its own are written to, beside the checkpoint or in
    the run's output. Raises ValueError when there is none."""
    assert isinstance(recipe.encoder, WordEncoderConfig)
    if recipe.encoder.vectors is not None:
        return recipe.encoder.vectors
    places = [*([checkpoint.resolve().parent / "vectors"] if checkpoint else []), Path(recipe.run.output) / "vectors"]
    for place in places:
        if is_word_vectors(place):
            return place
    raise ValueError(
        f"the word vectors that this run trained are not in {' or '.join(map(str, places))}; copy the folder OUTPUT/vectors "
        "of the run beside its checkpoint"
    )


def train_recipe_vectors(recipe: Recipe) -> Path | None:
    """Train the word vectors of a recipe that names none, on the sentences of its text streams. Returns their folder.

    Raises DataError when they hold no word often enough.
    """
    config = recipe.encoder
    if not isinstance(config, WordEncoderConfig) or config.vectors is not None:
        return None
    log.warning("encoder.vectors is none: word vectors are trained on the run's own sentences first")
    return train_vectors(
        partial(_sentences, recipe),
        Path(recipe.run.output) / "vectors",
        dim=config.dim,
        split=partial(split, letters=config.letters),
        letters=config.letters,
        epochs=config.epochs,
        seed=recipe.run.seed,
    )


def check_vocabulary(recipe: Recipe) -> None:
    """Look at the first sentences of a run on word vectors: a warning when most of their words have no vector.

    Raises ValueError when they have no word at all, as texts of another script than `encoder.letters` takes.
    """
    config = recipe.encoder
    if not isinstance(config, WordEncoderConfig):
        return
    words = [word for text in islice(_sentences(recipe), LOOKED_AT) for word in split(text, config.letters)]
    if not words:
        raise ValueError(
            f"the first {LOOKED_AT:,} sentences have no word of the letters {config.letters}; for another script than the "
            "Latin one set encoder.letters to 'any'"
        )
    if config.vectors is not None:
        known = open_vectors(config.vectors).row
        unknown = sum(word not in known for word in words) / len(words)
        if unknown > 0.5:
            log.warning(
                "%.0f %% of the words of the first sentences have no vector in %s; is encoder.letters (%s) right, and are "
                "these vectors of that language, in lower case?",
                100 * unknown,
                config.vectors,
                config.letters,
            )


def _sentences(recipe: Recipe) -> Iterator[str]:
    """Every text of every text stream, in the order of the shards. What cannot be read is the stream's to report."""
    for stream in recipe.streams.values():
        if not isinstance(stream, TextStream):
            continue
        for shard in ShardSet.open(stream.shards).shards:
            for start in range(0, shard.samples, CHUNK):
                for sample in read(shard, list(range(start, min(start + CHUNK, shard.samples)))):
                    if isinstance(sample, BadSample):
                        continue
                    try:
                        yield from text(sample.fields, stream.columns, key=sample.key)
                    except DecodeError:
                        if stream.on_bad_sample == "raise":
                            raise
