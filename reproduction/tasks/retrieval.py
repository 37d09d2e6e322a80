"""What LAION-CLAP's code computes as mAP@10, and the nearest captions of NonLing-CSE's Table D.1."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from multicse.evaluation.tables import layout
from multicse.evaluation.task import Encoder, EvaluationError, embed, shorten, unit
from multicse.evaluation.tasks.retrieval import Found, RetrievalTask, place_in_group

logger = logging.getLogger(__name__)

ENCODE = 8192  # captions of a database encoded at a time


def map_at_10_released(ranks: np.ndarray, owners: np.ndarray) -> float:
    """mAP@10 of items in points as LAION's code computes it, from ranks and owners (T,) in the set's order of captions.

    The ranks of an item's captions are not sorted: the r-th caption, of those with a rank of at most 10, counts r / rank,
    whether or not r - 1 of them come before it. It is never below `map_at_10`, and equals it where the captions stand in the
    order of their ranks; a perfect model scores 137 on average. Only to compare with that code.
    """
    found = np.flatnonzero(ranks <= 10)
    gain = np.bincount(owners[found], place_in_group(owners[found], found) / ranks[found], minlength=owners.max() + 1)
    return 100 * float(np.mean(gain / np.bincount(owners)))


class ReleasedRetrievalTask(RetrievalTask):
    """Retrieval whose mAP@10 from item to text is `map_at_10_released`: to compare with LAION-CLAP's code, and to choose
    checkpoints as it does."""

    def metrics(self, there: Found, back: Found) -> dict[str, float]:
        """Recall and mAP, of the ranks from item to text and back."""
        own = {f"{self.ways[0]}_map10": map_at_10_released(there.ranks, there.queries)}
        return self.with_means(super().metrics(there, back) | own)


class Neighbour(NamedTuple):
    """A text of the database that is near to a query."""

    text: str
    score: float  # cosine
    row: int  # position in the database, from 0


def nearest_captions(encoder: Encoder, queries: Sequence[str], database: Sequence[str], k: int = 3) -> list[list[Neighbour]]:
    """The k texts of `database` nearest to each query, best first (NonLing-CSE, Table D.1).

    A text that occurs several times in the database is found once (at its first row), and the query itself not at all.
    The database is encoded in chunks, of which only the best texts are kept.
    """
    row = {text: i for i, text in reversed(list(enumerate(database)))}
    distinct = sorted(row, key=row.__getitem__)
    if len(distinct) < len(database):
        logger.info("%d of %d database texts repeat an earlier one", len(database) - len(distinct), len(database))
    others = len(distinct) - any(query in row for query in queries)
    if not queries or not 1 <= k <= others:
        raise EvaluationError(
            f"k is {k} for {len(queries)} queries; the database has {others} distinct texts beside a query, so there must "
            f"be a query, and k must be 1 to {others}"
        )
    asking = unit(embed(encoder, list(queries)))
    best, numbers = np.empty((len(queries), 0)), np.empty((len(queries), 0), np.int64)
    for start in range(0, len(distinct), ENCODE):
        scores = asking @ unit(embed(encoder, distinct[start : start + ENCODE])).T
        numbers = np.concatenate([numbers, np.broadcast_to(np.arange(scores.shape[1]) + start, scores.shape)], 1)
        best = np.concatenate([best, scores], 1)
        kept = np.argsort(-best, axis=1, kind="stable")[:, : k + 1]  # one more: the query itself may be among them
        best, numbers = np.take_along_axis(best, kept, 1), np.take_along_axis(numbers, kept, 1)
    found = []
    for query, scores, rows in zip(queries, best.tolist(), numbers.tolist(), strict=True):
        near = [Neighbour(distinct[i], score, row[distinct[i]]) for score, i in zip(scores, rows, strict=True)]
        found.append([neighbour for neighbour in near if neighbour.text != query][:k])
    return found


def neighbour_table(queries: Sequence[str], found: Sequence[Sequence[Neighbour]]) -> str:
    """Queries with their nearest texts below them, as a text table."""
    rows = [["query, nearest texts", "cosine", "row"]]
    for query, neighbours in zip(queries, found, strict=True):
        rows.append([shorten(query, 100), "", ""])
        rows += [[f"  {shorten(n.text, 98)}", f"{n.score:.4f}", f"{n.row:,}"] for n in neighbours]
    return layout(rows)
