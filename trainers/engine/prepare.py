"""What an encoder needs of a run's sentences before training begins, such as word vectors that are trained on them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from multicse.data.errors import DecodeError
from multicse.data.shards import BadSample, read
from multicse.trainers.recipe import Recipe

CHUNK = 512  # samples of a shard read at once


def prepare(recipe: Recipe) -> None:
    """Let the recipe's encoder look at the sentences of the run, and make what it needs of them in the run's output.

    Raises ValueError where the encoder can make nothing of them.
    """
    recipe.encoder.prepare(partial(sentences, recipe), Path(recipe.run.output), recipe.run.seed)


def sentences(recipe: Recipe) -> Iterator[str]:
    """Every text of every text stream, in the order of the shards. What cannot be read is the stream's to report."""
    for stream in recipe.streams.values():
        if not stream.texts:
            continue
        shards = stream.open()
        for shard, count in zip(shards.shards, shards.counts, strict=True):
            for start in range(0, count, CHUNK):
                for sample in read(shard, list(range(start, min(start + CHUNK, count)))):
                    if isinstance(sample, BadSample):
                        continue
                    try:
                        yield from stream.sentences(sample)
                    except DecodeError:
                        if stream.on_bad_sample == "raise":
                            raise
