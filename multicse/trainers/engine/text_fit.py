"""Uses of the training text besides batches: prepared word vectors, and the whitened baseline."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from multicse.data.errors import DecodeError
from multicse.data.order import permutation, seed_of
from multicse.data.shards import BadSample, Shard, ShardSet, read
from multicse.data.streams.base import StreamConfig
from multicse.evaluation.encoders.whitening import Whitened
from multicse.evaluation.report import Report, evaluate
from multicse.evaluation.task import Encoded, EvaluationError, Task
from multicse.evaluation.tasks.sts import PairTask
from multicse.trainers.engine import record
from multicse.trainers.method import RecipeParts
from multicse.trainers.recipe import Recipe

log = logging.getLogger(__name__)

CHUNK = 512  # samples of a shard read at once
SHARDS = 64
"""Minimum number of shards of a stream from which `some_sentences` draws."""
FEWEST, SENTENCES = 5, 10
"""Minimum and maximum sentences per dimension for the whitened baseline; with too few the axes are random."""


def prepare_encoder(recipe: Recipe) -> None:
    """Let the recipe's encoder prepare files in the run's output from the sentences of the run, such as word vectors.

    Raises:
        ValueError: If the sentences are not sufficient for the encoder.
    """
    recipe.encoder.prepare(partial(sentences, recipe), Path(recipe.run.output_dir), recipe.run.seed)


def sentences(recipe: RecipeParts) -> Iterator[str]:
    """Yield every text of every text stream in the order of the shards; the stream reports unreadable samples."""
    for name, shards in _texts(recipe).items():
        for shard, count in zip(shards.shards, shards.counts, strict=True):
            for start in range(0, count, CHUNK):
                yield from _sentences_at(recipe.streams[name], shard, range(start, min(start + CHUNK, count)))


def some_sentences(recipe: Recipe, samples: int) -> Iterator[str]:
    """Yield the texts of a random part of the text streams, or of all samples if there are not more.

    Streams contribute in proportion to their size. For each stream, shards are drawn in random order (run seed) until
    there are `SHARDS` of them with enough samples; other shards are not read.

    Args:
        recipe: Recipe with the streams.
        samples: Approximate number of samples.
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
        drawn = np.sort(list(dict.fromkeys(draws.tolist()))[:wanted])  # the first distinct ones
        for place, start, stop in zip(chosen, ends, ends[1:], strict=False):
            inside = (drawn[(drawn >= start) & (drawn < stop)] - start).tolist()
            yield from _sentences_at(recipe.streams[name], shards.shards[place], inside)


def _texts(recipe: RecipeParts) -> dict[str, ShardSet]:
    """Return the shards of the text streams."""
    return {name: recipe.shards(name) for name, stream in recipe.streams.items() if stream.texts}


def _sentences_at(stream: StreamConfig, shard: Shard, positions: Sequence[int]) -> Iterator[str]:
    """Yield the texts at some positions of a shard."""
    for sample in read(shard, positions):
        if isinstance(sample, BadSample):
            continue
        try:
            yield from stream.sentences(sample)
        except DecodeError:
            if stream.on_bad_sample == "raise":
                raise


def baseline_sentences(recipe: Recipe, width: int) -> list[str]:
    """Return what the whitened baseline of a run is fitted on: its first `SENTENCES` per dimension, if it reads as many.

    Args:
        recipe: Recipe with the text streams.
        width: Number of dimensions of the embeddings.
    """
    lead = recipe.streams[recipe.lead]
    steps = recipe.steps(recipe.shards(recipe.lead).samples)
    read = steps * lead.batch_size * recipe.run.gradient_accumulation_steps
    return list(islice(sentences(recipe), min(SENTENCES * width, read)))


def text_of_run(folder: Path) -> Callable[[int], list[str]] | None:
    """Return `baseline_sentences` of the run in a folder as a function of the width, or None if it contains no run."""
    content = record.read(folder).get("recipe")
    return None if content is None else partial(baseline_sentences, Recipe.from_json(json.dumps(content)))


def whitened(recipe: Recipe, tasks: Sequence[Task], start: Encoded) -> Report:
    """Evaluate the whitened untrained encoder on the tasks that compare two sentences; a collective.

    Args:
        recipe: Recipe with the text streams.
        tasks: Evaluation tasks.
        start: Untrained encoder with the cached embeddings of the sentences in `tasks`.

    Returns:
        Report of these tasks; empty without such a task, or if there are too few sentences.

    References:
        Su et al., Whitening Sentence Representations for Better Semantics and Faster Retrieval, 2021.
    """
    pairs = [task for task in tasks if isinstance(task, PairTask)]
    width = start.vectors.shape[1]
    fitted = baseline_sentences(recipe, width) if pairs else []
    if len(fitted) < FEWEST * width or not pairs:
        return Report()
    try:
        return evaluate(pairs, Whitened(start, fitted, source="the first sentences of the training text"))
    except EvaluationError as error:  # constant embeddings
        log.warning("The whitened baseline is skipped: %s", error)
        return Report()
