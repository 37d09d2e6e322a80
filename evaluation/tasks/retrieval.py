"""Retrieval by cosine, exact and in blocks: item and caption in both directions; and the contrastive loss of such pairs.

Only the scores of a block of queries are in memory at a time, in float64, never the whole matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy

from multicse.data.errors import did_you_mean
from multicse.data.text_files import read_lines, read_rows
from multicse.evaluation.task import Encoder, EvaluationError, Score, look_up, unit
from multicse.evaluation.tasks.paired_items import PairedTask, encode_pairs

CELLS = 2**20  # scores of a block: 8 MB
BATCH = 80  # pairs of a validation loss, unless said otherwise
TIE = 1e-9  # cosines that differ by less are equal


class Found(NamedTuple):
    """Ranks from 1 of everything relevant, one a pair of a query and a row of the database that is relevant to it."""

    queries: np.ndarray  # (P,)
    ranks: np.ndarray  # (P,)


def relevant_ranks(queries: np.ndarray, database: np.ndarray, relevant: np.ndarray) -> Found:
    """Ranks of all rows of database (M, d) that are relevant to queries (Q, d): pairs of row numbers (2, P), each once.

    The rank is the place among the query's relevant rows plus the number of other rows that score as high or higher. A tie
    thus counts as lost: an encoder that gives everything one vector finds nothing, where counting strictly higher scores,
    or sorting, would let it find what happens to come first. Queries come out in ascending order.

    Raises EvaluationError for vectors of different widths or that are not finite (a NaN compares as lower than nothing,
    which would be a perfect rank).
    """
    if queries.ndim != 2 or database.ndim != 2 or queries.shape[1] != database.shape[1]:
        raise EvaluationError(f"vectors {queries.shape} and {database.shape} do not lie in one space, (N, d) and (M, d)")
    asking, asked = relevant[:, np.argsort(relevant[0], kind="stable")]
    bounds = np.searchsorted(asking, np.arange(len(queries) + 1))
    rows, ranks, size = unit(database), np.empty(len(asking), np.int64), max(1, CELLS // len(database))
    for start in range(0, len(queries), size):
        for query, scores in enumerate(unit(queries[start : start + size]) @ rows.T, start):
            own = slice(bounds[query], bounds[query + 1])
            found, others = scores[asked[own]], np.delete(scores, asked[own])
            place = np.argsort(np.argsort(-found, kind="stable")) + 1
            ranks[own] = place + (others >= found[:, None] - TIE).sum(1)
    return Found(asking, ranks)


def best_ranks(ranks: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """The best rank (N,) among each item's captions, from ranks and owners (T,)."""
    best = np.full(owners.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(best, owners, ranks)
    return best


def recall_at(ranks: np.ndarray) -> dict[int, float]:
    """R@k in points for k of 1, 5 and 10: the share of queries whose (best) rank is at most k."""
    return {k: 100 * float(np.mean(np.asarray(ranks) <= k)) for k in (1, 5, 10)}


def map_at_10(ranks: np.ndarray, owners: np.ndarray, most: int | None = None) -> float:
    """mAP@10 in points, as LAION-CLAP describes it.

    The mean over the items that `owners` (T,) names of sum_r (r / rank_r) over those of its captions, in order, whose rank
    is at most 10, divided by the number of its captions (by `most`, if there are more).
    """
    gain = np.where(ranks <= 10, place_in_group(owners, ranks) / ranks, 0.0)
    count = np.bincount(owners)
    share = np.bincount(owners, gain)[count > 0] / np.minimum(count[count > 0], most or len(ranks))
    return 100 * float(np.mean(share))


def place_in_group(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Place (T,), from 1, of each value in ascending order within its group."""
    order = np.lexsort((values, groups))
    ordered, place = groups[order], np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered) + 1
    return place


# ----------------------------------------------------------------------------------------------------------- paired shards


class RetrievalTask(PairedTask):
    """Pictures or sounds of shards against their captions, of which an item may have several.

    ``<image|audio>_to_text_r1`` (r5, r10): the item is the query, and the best ranked of its own captions counts.
    ``text_to_<image|audio>_r1``: every caption is a query over the items. ``..._map10`` is mAP@10. In points.
    ``mean_r1`` and ``mean_map10``, the means of the two directions; `primary`, one of all these, stands for the task.
    With five captions for every item the numbers are those of LAION-CLAP's five passes from text to item, averaged.

    With `shared`, captions of the same text are one caption that belongs to all items that carry it: for sets whose
    captions are made from class names, where all but one of the items of a class would count as wrong. An item's hit is
    any of its texts, a text's hit any item that carries it, and each distinct text is one query: R@k is the share of
    queries whose best ranked hit has a rank of at most k, and mAP@10 of a text is divided by min(10, number of its items).

    Raises EvaluationError for an unknown `primary`.
    """

    primary = "mean_r1"

    def __init__(
        self, name: str, shards: str | Path | Sequence[str], primary: str = "mean_r1", shared: bool = False
    ) -> None:
        super().__init__(name, shards)
        kinds = ("r1", "r5", "r10", "map10")
        known = [f"{way}_{kind}" for way in self.ways for kind in kinds] + ["mean_r1", "mean_map10"]
        if primary not in known:
            near = did_you_mean(primary, known)
            raise EvaluationError(f"task {name}: unknown primary={primary!r}.{near} There are {', '.join(known)}")
        self.primary = primary
        self.shared = shared

    @property
    def ways(self) -> tuple[str, str]:
        """Names of the two directions."""
        return f"{self.modality}_to_text", f"text_to_{self.modality}"

    def score(self, encoder: Encoder) -> Score:
        """Recall and mAP in both directions; counts of items and captions."""
        items, captions, owners = encode_pairs(self.samples, encoder)
        distinct = {text: row for row, text in enumerate(dict.fromkeys(captions))}
        pairs = np.stack([owners, np.arange(len(captions))])
        if self.shared:
            pairs = np.unique(np.stack([owners, [distinct[text] for text in captions]]), axis=1)
        (texts,) = look_up(encoder, list(distinct) if self.shared else captions)
        there, back = relevant_ranks(items, texts, pairs), relevant_ranks(texts, items, pairs[::-1])
        count = np.bincount(owners)
        spread = {"fewest_captions": int(count.min()), "most_captions": int(count.max())}
        counts = {"items": len(items), "captions": len(captions), "distinct_captions": len(distinct), **spread}
        return Score(self.metrics(there, back), counts)

    def metrics(self, there: Found, back: Found) -> dict[str, float]:
        """Recall and mAP, of the ranks from item to text and back."""
        metrics: dict[str, float] = {}
        for way, (queries, ranks), most in zip(self.ways, (there, back), (None, 10), strict=True):
            metrics |= {f"{way}_r{k}": value for k, value in recall_at(best_ranks(ranks, queries)).items()}
            metrics[f"{way}_map10"] = map_at_10(ranks, queries, most)
        return self.with_means(metrics)

    def with_means(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics with the means of both directions."""
        means = {f"mean_{kind}": float(np.mean([metrics[f"{way}_{kind}"] for way in self.ways])) for kind in ("r1", "map10")}
        return metrics | means


# ------------------------------------------------------------------------------------------------------- validation loss


def symmetric_cross_entropy(items: np.ndarray, texts: np.ndarray, scale: float) -> float:
    """(CE(s I T', diagonal) + CE(s T I', diagonal)) / 2, each the mean over the N pairs of items I and texts T (N, d), which
    are brought to unit length first; s is `scale` (Radford et al. 2021, Figure 3). ln N for vectors that say nothing.
    """
    if items.shape != texts.shape:
        raise EvaluationError(f"the loss is of pairs, in one space; {items.shape} and {texts.shape} vectors were given")
    logits = scale * unit(items) @ unit(texts).T
    both = scipy.special.logsumexp(logits, axis=1) + scipy.special.logsumexp(logits, axis=0)
    return float((both / 2 - logits.diagonal()).mean())


class ContrastiveTask(PairedTask):
    """The validation loss by which CyCLIP's code, which Zhao et al. follows, chooses a checkpoint: of pictures or sounds of
    shards, each with its first caption, in the shards' order and in batches of `batch`; lower is better.

    ``loss`` is the mean over batches of `symmetric_cross_entropy` at the encoder's own logit scale. The targets are the
    other pairs of the batch, so that losses compare at equal `batch` only. A last, incomplete batch is left out, as in
    training, unless it is the only one. Not in points.

    Raises EvaluationError for a batch of less than 2, and for an encoder without logit scale (no CLIP, no CLAP).
    """

    primary = "loss"
    lower_is_better = True

    def __init__(self, name: str, shards: str | Path | Sequence[str], batch: int = BATCH) -> None:
        super().__init__(name, shards)
        if batch < 2:
            raise EvaluationError(f"task {name}: batch={batch}; a loss over the pairs of a batch needs at least 2")
        self.batch = batch

    def score(self, encoder: Encoder) -> Score:
        """The loss; in the details the scale, what is in a batch, and the loss of a model that knows nothing."""
        scale = getattr(encoder, "logit_scale", None)
        if scale is None:
            raise EvaluationError(f"task {self.name}: the encoder has no logit scale; retrieval: needs none")
        items, captions, owners = encode_pairs(self.samples, encoder)
        (texts,) = look_up(encoder, [captions[i] for i in np.unique(owners, return_index=True)[1]])
        size = min(self.batch, len(items))
        starts = range(0, len(items) - size + 1, size)
        losses = [symmetric_cross_entropy(items[i : i + size], texts[i : i + size], scale) for i in starts]
        details = {"items": len(items), "batch": size, "batches": len(losses), "left_out": len(items) - size * len(losses)}
        return Score({"loss": float(np.mean(losses))}, {**details, "logit_scale": scale, "chance": float(np.log(size))})


# ---------------------------------------------------------------------------------------------------------------- files


def read_captions(path: str | Path, columns: Sequence[str] = ()) -> list[str]:
    """Texts of a file, one a line (``.txt``, ``.txt.gz``), or those of `columns` of a TSV with a header, row by row.

    Empty texts are left out. Raises EvaluationError or DataError for a missing or damaged file, a missing column, and a line
    with another number of fields, by its number.
    """
    path = Path(path).expanduser()
    if columns:
        found = [row[column].strip() for _, row in read_rows(path, columns) for column in columns]
    else:
        if ".tsv" in path.suffixes:
            raise EvaluationError(f"{path} is a TSV; give a file of one text a line")
        found = [line.strip() for _, line in read_lines(path)]
    texts = [text for text in found if text]
    if not texts:
        raise EvaluationError(f"{path} holds no text")
    return texts
