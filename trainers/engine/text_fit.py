"""What a run takes from its training text besides batches: prepared word vectors, and the whitening of the baseline."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from multicse.data.errors import DecodeError
from multicse.data.shards import BadSample, read
from multicse.evaluation.encoders.baselines import Whitened
from multicse.evaluation.task import Encoded, EvaluationError, Task, evaluate
from multicse.evaluation.tasks.sts import PairTask
from multicse.trainers.recipe import Recipe

log = logging.getLogger(__name__)

CHUNK = 512  # samples of a shard read at once
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
