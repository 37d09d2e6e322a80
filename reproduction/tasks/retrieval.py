"""What LAION-CLAP's code computes as mAP@10, and the nearest captions of NonLing-CSE's Table D.1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multicse.evaluation.tables import layout
from multicse.evaluation.task import Encoder, embed, shorten, unit
from multicse.evaluation.tasks.retrieval import Found, RetrievalTask, place_in_group

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


Neighbour = tuple[str, float]
"""A text of the database that is near to a query, and their cosine."""


def nearest_captions(encoder: Encoder, queries: Sequence[str], database: Sequence[str], k: int = 3) -> list[list[Neighbour]]:
    """The k texts of `database` nearest to each query, best first (NonLing-CSE, Table D.1).

    A text that occurs several times in the database is found once, and the query itself not at all.
    """
    texts = list(dict.fromkeys(database))
    asking = unit(embed(encoder, list(queries)))
    parts = (texts[start : start + ENCODE] for start in range(0, len(texts), ENCODE))
    cosines = np.concatenate([asking @ unit(embed(encoder, part)).T for part in parts], axis=1)
    found = []
    for query, row in zip(queries, cosines, strict=True):
        best = np.argsort(-row, kind="stable")[: k + 1]  # one more: the query itself may be among them
        found.append([(texts[i], float(row[i])) for i in best if texts[i] != query][:k])
    return found


def neighbour_table(queries: Sequence[str], found: Sequence[Sequence[Neighbour]]) -> str:
    """Queries with their nearest texts below them, as a text table."""
    rows = [["query, nearest texts", "cosine"]]
    for query, neighbours in zip(queries, found, strict=True):
        rows += [[shorten(query, 100), ""], *([f"  {shorten(text, 98)}", f"{cosine:.4f}"] for text, cosine in neighbours)]
    return layout(rows)
