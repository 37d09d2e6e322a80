"""What every run is measured against: the encoder that it begins with, whitened on the text that it is trained on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice

from multicse.evaluation.encoders.baselines import Whitened
from multicse.evaluation.task import Encoded, EvaluationError, Task, evaluate
from multicse.evaluation.tasks.sts import PairTask
from multicse.trainers.engine.prepare import sentences
from multicse.trainers.recipe import Recipe

log = logging.getLogger(__name__)

FEWEST, SENTENCES = 5, 10
"""For each dimension, of those at the beginning of the shards. With fewer the axes are those of chance: the small encoder
has 9 points less on Lee with 300 sentences than with 10,000, and 1 less with 1,280. More take longer."""


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
