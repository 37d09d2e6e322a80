"""Exact retrieval by cosine between items and captions, in both directions, and the contrastive loss of these pairs.

Scores are computed in float64 for a block of queries at a time, so the whole matrix is never in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import scipy

from multicse.data.errors import did_you_mean
from multicse.data.text_files import read_lines, read_rows
from multicse.evaluation.kind import Kind
from multicse.evaluation.task import Encoder, EvaluationError, Score, Task, look_up, unit
from multicse.evaluation.tasks.paired_items import PairedTask, encode_pairs

CELLS = 2**20  # scores per block: 8 MB
BATCH = 80  # default number of pairs in a batch of the validation loss
TIE = 1e-9  # cosines with a smaller difference are equal
TOP = 10  # places that recall and mAP look at


class Found(NamedTuple):
    """Ranks, from 1, of relevant rows: one per pair of a query and one of its best relevant rows of the database."""

    queries: np.ndarray  # (P,)
    ranks: np.ndarray  # (P,)


def relevant_ranks(
    queries: np.ndarray, database: np.ndarray, relevant: Sequence[np.ndarray], itself: Sequence[int] | None = None
) -> Found:
    """Rank the relevant rows of a database for every query.

    The rank is the position among the query's relevant rows plus the number of other rows with an equal or higher score.
    Ties therefore count against the encoder: with constant embeddings nothing is retrieved.

    Args:
        queries: (Q, d).
        database: (M, d).
        relevant: Rows of the database that are relevant for each query: Q arrays of shape (R,), each with at least one.
        itself: Row of the database that is the query, for each of the Q queries, which is left out. If None, no row is.

    Returns:
        Query and rank of the best `TOP` relevant rows of each query, in the order of `relevant`. The others have ranks above
        `TOP`.
    """
    if queries.ndim != 2 or database.ndim != 2 or queries.shape[1] != database.shape[1]:
        raise EvaluationError(
            f"embeddings {queries.shape} and {database.shape} have different dimensions; expected (N, d), (M, d)"
        )
    rows, size = unit(database), max(1, CELLS // len(database))
    ranks: list[np.ndarray] = []
    for start in range(0, len(queries), size):
        for query, scores in enumerate(unit(queries[start : start + size]) @ rows.T, start):
            own = relevant[query]
            found, others = scores[own], np.delete(scores, own if itself is None else [*own, itself[query]])
            place = np.argsort(np.argsort(-found, kind="stable")) + 1
            found, place = found[place <= TOP], place[place <= TOP]
            ranks.append(place + (others >= found[:, None] - TIE).sum(1))
    return Found(np.repeat(np.arange(len(ranks)), list(map(len, ranks))), np.concatenate(ranks))


def map_at_10(ranks: np.ndarray, owners: np.ndarray) -> float:
    """Compute mAP@10 as LAION-CLAP does: mean over items, in points.

    The average precision of an item is sum_r (r / rank_r) over its captions, in order, with a rank of at most 10, divided by
    the number of its captions, at most 10.

    Args:
        ranks: Ranks of captions, (T,).
        owners: Item of each caption, (T,).
    """
    gain = np.where(ranks <= TOP, place_in_group(owners, ranks) / ranks, 0.0)
    count = np.bincount(owners)
    share = np.bincount(owners, gain)[count > 0] / np.minimum(count[count > 0], TOP)
    return 100 * float(np.mean(share))


def place_in_group(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the position (T,), from 1, of each value in ascending order within its group.

    Args:
        groups: Group of each value, (T,).
        values: (T,).
    """
    order = np.lexsort((values, groups))
    ordered, place = groups[order], np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered) + 1
    return place


def found_metrics(found: Found) -> dict[str, float]:
    """Return recall at 1, 5 and 10, and mAP@10, in points."""
    best = np.full(found.queries.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(best, found.queries, found.ranks)
    recall = {f"r{k}": 100 * float(np.mean(best <= k)) for k in (1, 5, 10)}
    return {**recall, "map10": map_at_10(found.ranks, found.queries)}


def _grouped(groups: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    """Return the distinct values (V,) of each of the groups 0, 1, ....

    Args:
        groups: Group of each value, (T,); no group is empty.
        values: (T,).
    """
    group, value = np.unique(np.stack([groups, values]), axis=1)
    return np.split(value, np.flatnonzero(np.diff(group)) + 1)


# ----------------------------------------------------------------------------------------------------------- paired shards


class RetrievalTask(PairedTask):
    """Retrieval between images or audio clips and their captions; an item may have several captions.

    Equal images or clips are one item, and an equal caption of another item is as right as an item's own: nobody can tell
    them apart, and a perfect encoder reaches 100.

    Metrics, in points: ``<image|audio>_to_text_r1`` (r5, r10), where the item is the query and its best ranked caption
    counts; ``text_to_<image|audio>_r1``, where every caption is a query; ``..._map10``, mAP@10; ``mean_r1`` and
    ``mean_map10``, the means of both directions.

    Args:
        primary: Main metric of the task.
        shared: Count equal captions once, for captions made from class names: each distinct text is one query and one row
            of the database.
    """

    def __init__(
        self, name: str, shards: str | Path | Sequence[str], primary: str = "mean_r1", shared: bool = False
    ) -> None:
        super().__init__(name, shards)
        kinds = ("r1", "r5", "r10", "map10")
        known = [f"{way}_{kind}" for way in self.ways for kind in kinds] + ["mean_r1", "mean_map10"]
        if primary not in known:
            near = did_you_mean(primary, known)
            raise EvaluationError(f"task {name}: unknown primary={primary!r}.{near} Metrics: {', '.join(known)}")
        self.primary = primary
        self.shared = shared

    @property
    def ways(self) -> tuple[str, str]:
        """Return the names of the two directions."""
        return f"{self.modality}_to_text", f"text_to_{self.modality}"

    def score(self, encoder: Encoder) -> Score:
        """Return recall and mAP in both directions; details are the numbers of items and captions."""
        items, captions, owners = encode_pairs(self.samples, encoder)
        row = {text: number for number, text in enumerate(dict.fromkeys(captions))}
        which = np.array([row[text] for text in captions])  # (T,), the number of the caption's text
        texts = np.arange(len(row)) if self.shared else which  # text of each row of the database
        texts_of, items_of = _grouped(owners, which), _grouped(which, owners)
        rows_of = _grouped(texts, np.arange(len(texts)))
        (vectors,) = look_up(encoder, list(row) if self.shared else captions)
        own = [
            rows_of[found[0]] if len(found) == 1 else np.concatenate([rows_of[one] for one in found]) for found in texts_of
        ]
        there = relevant_ranks(items, vectors, own)
        back = relevant_ranks(vectors, items, [items_of[text] for text in texts])
        count = np.bincount(owners)
        spread = {"fewest_captions": int(count.min()), "most_captions": int(count.max())}
        counts = {
            "samples": len(self.samples),
            "items": len(items),
            "captions": len(captions),
            "distinct_captions": len(row),
        }
        return Score(self.metrics(there, back), counts | spread)

    def metrics(self, there: Found, back: Found) -> dict[str, float]:
        """Return recall and mAP for ranks from item to text and from text to item."""
        ways = zip(self.ways, (found_metrics(there), found_metrics(back)), strict=True)
        return self.with_means({f"{way}_{kind}": value for way, found in ways for kind, value in found.items()})

    def with_means(self, metrics: dict[str, float]) -> dict[str, float]:
        """Add the means of both directions to the metrics."""
        means = {f"mean_{kind}": float(np.mean([metrics[f"{way}_{kind}"] for way in self.ways])) for kind in ("r1", "map10")}
        return metrics | means


class Retrieval(Kind):
    """Shards of images or audio with captions, both directions."""

    kind: Literal["retrieval"] = "retrieval"
    primary: str = "mean_r1"
    """Metric by which a checkpoint is chosen."""
    shared: bool = False
    """Count equal captions once, for captions made from class names."""

    def make(self, seed: int) -> Task:
        """Return the task."""
        return RetrievalTask(self.title + "-shared" * self.shared, self.place, self.primary, self.shared)


# ------------------------------------------------------------------------------------------------------- validation loss


class ContrastiveTask(PairedTask):
    """Validation loss for choosing a checkpoint, as in CyCLIP's code and Zhao et al.; lower is better, not in points.

    ``loss`` is CLIP's loss (Radford et al. 2021, Figure 3) at the encoder's logit scale, averaged over batches of items with
    their first captions in the order of the shards. Losses are comparable only for equal `batch`. An incomplete last batch
    is skipped, as in training, unless it is the only one.

    Args:
        batch: Pairs per batch.
    """

    primary = "loss"
    lower_is_better = True

    def __init__(self, name: str, shards: str | Path | Sequence[str], batch: int = BATCH) -> None:
        super().__init__(name, shards)
        if batch < 2:
            raise EvaluationError(f"task {name}: batch={batch}; a loss over the pairs of a batch needs at least 2")
        self.batch = batch

    def score(self, encoder: Encoder) -> Score:
        """Return the loss; details are the logit scale, sizes of batches, and the loss at chance level, ln(batch)."""
        scale = getattr(encoder, "logit_scale", None)
        if scale is None:
            raise EvaluationError(f"task {self.name}: the encoder has no logit scale; retrieval: needs none")
        pairs = encode_pairs(self.samples, encoder)
        items, (texts,) = pairs.items, look_up(encoder, pairs.first)
        if items.shape != texts.shape:
            raise EvaluationError(f"task {self.name} needs pairs of embeddings, got shapes {items.shape} and {texts.shape}")
        size = min(self.batch, len(items))
        losses = []
        for start in range(0, len(items) - size + 1, size):
            rows = slice(start, start + size)
            logits = scale * unit(items[rows]) @ unit(texts[rows]).T
            both = scipy.special.logsumexp(logits, axis=1) + scipy.special.logsumexp(logits, axis=0)
            losses.append(float((both / 2 - logits.diagonal()).mean()))
        details = {"items": len(items), "batch": size, "batches": len(losses), "left_out": len(items) - size * len(losses)}
        return Score({"loss": float(np.mean(losses))}, {**details, "logit_scale": scale, "chance": float(np.log(size))})


class Contrastive(Kind):
    """Shards of images or audio with captions: the loss over batches at the model's logit scale."""

    kind: Literal["contrastive"] = "contrastive"
    batch: int = BATCH
    """Pairs per batch."""

    def make(self, seed: int) -> Task:
        """Return the task."""
        name = self.title + (f"-batch{self.batch}" if self.batch != BATCH else "")
        return ContrastiveTask(name, self.place, self.batch)


# ---------------------------------------------------------------------------------------------------------------- files


def read_captions(path: str | Path, columns: Sequence[str] = ()) -> list[str]:
    """Read the texts of a file, without empty ones.

    Args:
        path: File with one text per line (``.txt``, ``.txt.gz``), or a TSV with a header.
        columns: Columns of the TSV to read, row by row.
    """
    path = Path(path).expanduser()
    if columns:
        found = [row[column].strip() for _, row in read_rows(path, columns) for column in columns]
    else:
        if ".tsv" in path.suffixes:
            raise EvaluationError(f"{path} is a TSV; pass a file with one text per line")
        found = [line.strip() for _, line in read_lines(path)]
    texts = [text for text in found if text]
    if not texts:
        raise EvaluationError(f"{path} contains no text")
    return texts
