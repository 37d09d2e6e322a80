"""What a run takes from its training text besides batches: prepared word vectors, and the whitening of the baseline."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from multicse.data.errors import DecodeError
from multicse.data.order import permutation, seed_of
from multicse.data.shards import BadSample, Shard, ShardSet, read
from multicse.data.streams.base import StreamConfig
from multicse.evaluation.encoders.baselines import Whitened
from multicse.evaluation.task import Encoded, EvaluationError, Task, evaluate
from multicse.evaluation.tasks.sts import PairTask
from multicse.trainers.recipe import Recipe

log = logging.getLogger(__name__)

CHUNK = 512  # samples of a shard read at once
SHARDS = 64
"""Shards of a stream from which `some_sentences` draws, at least."""
FEWEST, SENTENCES = 5, 10
"""For each dimension, of those at the beginning of the shards. With fewer the axes are those of chance: the small encoder
has 9 points less on Lee with 300 sentences than with 10,000, and 1 less with 1,280. More take longer."""


def prepare(recipe: Recipe) -> None:
    """Let the recipe's encoder look at the sentences of the run, and make what it needs of them in the run's output.

    Raises ValueError where the encoder can make nothing of them.
    """
    recipe.encoder.prepare(partial(sentences, recipe), Path(recipe.run.output_dir), recipe.run.seed)


def sentences(recipe: Recipe) -> Iterator[str]:
    """Every text of every text stream, in the order of the shards. What cannot be read is the stream's to report."""
    for name, shards in _texts(recipe).items():
        for shard, count in zip(shards.shards, shards.counts, strict=True):
            for start in range(0, count, CHUNK):
                yield from _sentences_at(recipe.streams[name], shard, range(start, min(start + CHUNK, count)))


def some_sentences(recipe: Recipe, samples: int) -> Iterator[str]:
    """The texts of about this many samples of the text streams; of all samples if there are not more.

    First shards are drawn, then samples of them, so no other shard is read. The samples of a stream are in proportion to its
    size. Its shards are taken in an order that follows from the run's seed, until there are `SHARDS`, with enough samples.
    The samples are the first distinct ones of four times as many draws from these shards.
    """
    opened = _texts(recipe)
    total = sum(shards.samples for shards in opened.values())
    if total <= samples:
        yield from sentences(recipe)
        return
    for name, shards in opened.items():
        wanted = -(-samples * shards.samples // total)
        chosen: list[int] = []
        ends = [0]
        for place in permutation(len(shards.shards), seed_of(recipe.run.seed, name, "fit shards")).tolist():
            if len(chosen) >= SHARDS and ends[-1] >= wanted:
                break
            chosen.append(place)
            ends.append(ends[-1] + shards.counts[place])
        draws = np.random.PCG64(seed_of(recipe.run.seed, name, "fit samples")).random_raw(4 * wanted) % ends[-1]
        drawn = np.sort(list(dict.fromkeys(draws.tolist()))[:wanted])
        for place, start, stop in zip(chosen, ends, ends[1:], strict=False):
            inside = (drawn[(drawn >= start) & (drawn < stop)] - start).tolist()
            yield from _sentences_at(recipe.streams[name], shards.shards[place], inside)


def _texts(recipe: Recipe) -> dict[str, ShardSet]:
    """The shards of the text streams."""
    return {name: recipe.shards(name) for name, stream in recipe.streams.items() if stream.texts}


def _sentences_at(stream: StreamConfig, shard: Shard, positions: Sequence[int]) -> Iterator[str]:
    """The texts at these positions of a shard."""
    for sample in read(shard, positions):
        if isinstance(sample, BadSample):
            continue
        try:
            yield from stream.sentences(sample)
        except DecodeError:
            if stream.on_bad_sample == "raise":
                raise


def whitened(recipe: Recipe, tasks: Sequence[Task], start: Encoded, samples: int) -> dict[str, dict[str, float]]:
    """Metrics by name of the tasks that compare two sentences, after whitening (Su et al. 2021).

    Nothing where there is no such task, or where the run reads too few sentences for it. A collective, as all of evaluation
    is.

    Args:
        start: the untrained encoder, with the sentences of `tasks` encoded; these are not encoded again.
        samples: that the run reads.
    """
    pairs = [task for task in tasks if isinstance(task, PairTask)]
    width = start.vectors.shape[1]
    fitted = list(islice(sentences(recipe), min(SENTENCES * width, samples))) if pairs else []
    if len(fitted) < FEWEST * width or not pairs:
        return {}
    try:
        return evaluate(pairs, Whitened(start, fitted, source="the first sentences of the training text"))
    except EvaluationError as error:  # vectors that do not vary
        log.warning("the untrained encoder cannot be whitened: %s", error)
        return {}
