"""Where vectors lie on the unit sphere: how close positives are, and how evenly all fill it.

Every number here is of directions: vectors are brought to unit length first. None is in points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from multicse.evaluation.task import Encoder, EvaluationError, Score, look_up
from multicse.evaluation.tasks.paired_items import PairedTask, encode_pairs
from multicse.evaluation.tasks.sts import PairTask

CHUNK = 2048  # rows of a block of pairs
TOP = 3  # dimensions counted as the top ones


def alignment(x: np.ndarray, y: np.ndarray) -> float:
    """mean ||x_i - y_i||^2 of positive pairs x, y (N, d), brought to unit length first; 0 to 4, lower is better.

    Left unnormalised the number is a matter of vector lengths (in the hundreds for BERT).
    """
    if x.shape != y.shape:
        raise EvaluationError(f"alignment is of pairs, in one space; {x.shape} and {y.shape} vectors were given")
    return (on_sphere(x) - on_sphere(y)).square().sum(-1).mean().item()


def uniformity(x: np.ndarray) -> float:
    """log mean_{i<j} exp(-2 ||x_i - x_j||^2) of x (N, d), brought to unit length first; -8 to 0, lower is better."""
    return float(np.float32(cross_uniformity_cyclip(x, x)))  # as precise as the cosines


def cross_uniformity_cyclip(x: np.ndarray, y: np.ndarray) -> float:
    """log mean_{i>j} exp(-2 ||x_i - y_j||^2) of pairs x, y (N, d): what CyCLIP's hypersphere script calls uniformity.

    It says how far an item is from other items' captions, not how evenly either fills the sphere, and the order of the
    pairs decides which half of the combinations counts. Only to compare with that script; Wang & Isola's is `uniformity`.
    """
    if len(x) != len(y) or len(x) < 2:
        raise EvaluationError(f"uniformity needs at least 2 rows, of pairs on both sides; got {len(x)} and {len(y)} vectors")
    sums = []
    for rows, columns, cosines in cosine_blocks(on_sphere(y), on_sphere(x)):
        above = rows[:, None] < columns
        if above.any():
            sums.append((4 * cosines[above] - 4).logsumexp(0).double())  # -2 ||a - b||^2 = 4 cos - 4
    return float(torch.stack(sums).logsumexp(0)) - math.log(len(x) * (len(x) - 1) / 2)


def anisotropy(x: np.ndarray) -> dict[str, float]:
    """Of x (N, d) at unit length: ``mean_cosine`` over all pairs i<j, near 0 when directions are spread and near 1 in a
    narrow cone (Ethayarajh 2019); ``dimension_std``, the mean over the dimensions of their standard deviation times
    sqrt(d), 1 when directions are spread evenly and 0 when all vectors are one (Chen & He 2021, Figure 2);
    ``top3_variance``, the share of the variance that the three most variable dimensions hold (3/d when all are alike)."""
    if len(x) < 2:
        raise EvaluationError(f"a mean over pairs needs at least 2 vectors; {len(x)} was given")
    rows = on_sphere(x).double()
    mean_cosine = float((rows.sum(0).square() - rows.square().sum(0)).sum()) / (len(x) * (len(x) - 1))
    spread = rows.std(0, correction=0).numpy() * np.sqrt(x.shape[1])
    variance = np.sort(spread**2)[::-1]
    share = variance[:TOP].sum() / variance.sum() if variance.sum() > 0 else 1.0
    return {"mean_cosine": mean_cosine, "dimension_std": float(spread.mean()), "top3_variance": float(share)}


# ------------------------------------------------------------------------------------------------------------------ tasks


class GeometryTask:
    """Alignment of the pairs rated above `threshold` (SimCSE: 4 of 5), uniformity and anisotropy of all distinct sentences,
    of one pair task. Not in points."""

    primary = "uniformity"

    def __init__(self, pairs: PairTask, threshold: float) -> None:
        self.name = f"{pairs.name}-geometry"
        self.pairs = pairs
        self.threshold = threshold
        self.positives = np.flatnonzero(pairs.gold > threshold)
        if not len(self.positives):
            raise EvaluationError(f"task {self.name}: no pair is rated above {threshold}, so alignment has no positives")

    @property
    def hash(self) -> str:
        """sha256 of the pairs and ratings."""
        return self.pairs.hash

    def sentences(self) -> list[str]:
        """Distinct sentences of all pairs."""
        return self.pairs.sentences()

    def score(self, encoder: Encoder) -> Score:
        """``alignment``, ``uniformity``, ``uniformity_without_log`` and `anisotropy`; what they are over."""
        pairs, sentences = self.pairs.pairs, self.sentences()
        vectors, first, second = look_up(
            encoder, sentences, *([side[i] for i in self.positives] for side in (pairs.first, pairs.second))
        )
        metrics = {"alignment": alignment(first, second), "uniformity": uniformity(vectors)}
        metrics["uniformity_without_log"] = float(np.exp(metrics["uniformity"]))
        counts = {"positives": len(self.positives), "threshold": self.threshold, "sentences": len(sentences)}
        return Score(metrics | anisotropy(vectors), counts)


class PairedGeometryTask(PairedTask):
    """Alignment of pictures or sounds with their captions, and how evenly each kind fills the sphere (Zhao et al., Figures
    2 and 3).

    ``alignment`` is over all pairs of an item and one of its captions, ``text_uniformity`` over the distinct captions,
    ``image_uniformity`` or ``audio_uniformity`` over the items. ``cross_uniformity_cyclip`` is over the items with their
    first captions, see the function. ``modality_gap`` is the distance between the mean item and the mean caption (Liang
    et al. 2022). Not in points.
    """

    primary = "alignment"

    def score(self, encoder: Encoder) -> Score:
        """The numbers above; counts of items and captions."""
        items, captions, owners = encode_pairs(self.samples, encoder)
        distinct = list(dict.fromkeys(captions))
        if len(distinct) < 2:
            raise EvaluationError(f"task {self.name}: all captions are {captions[0]!r}; uniformity is over different ones")
        texts, different = look_up(encoder, captions, distinct)
        first = np.unique(owners, return_index=True)[1]
        gap = np.linalg.norm((on_sphere(items).double().mean(0) - on_sphere(different).double().mean(0)).numpy())
        metrics = {
            "alignment": alignment(items[owners], texts),
            "text_uniformity": uniformity(different),
            f"{self.samples.modality}_uniformity": uniformity(items),
            "cross_uniformity_cyclip": cross_uniformity_cyclip(items, texts[first]),
            "modality_gap": float(gap),
        }
        return Score(metrics, {"items": len(items), "captions": len(captions), "distinct_captions": len(distinct)})


def cosine_blocks(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Row numbers, column numbers and cosines of blocks of unit vectors a, b (N, d), at and right of the diagonal."""
    for top in range(0, len(a), CHUNK):
        for left in range(top, len(b), CHUNK):
            rows = torch.arange(top, min(top + CHUNK, len(a)))
            columns = torch.arange(left, min(left + CHUNK, len(b)))
            yield rows, columns, a[rows[0] : rows[-1] + 1] @ b[columns[0] : columns[-1] + 1].T


def on_sphere(x: np.ndarray) -> Tensor:
    """Rows of x (N, d) at unit length, float32; a zero row has no direction and is refused, and so is a NaN."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():
        raise EvaluationError(f"row {int(np.argmin(np.isfinite(lengths)))} holds NaN or infinity; the model has diverged")
    if not (lengths > 0).all():
        raise EvaluationError(f"row {int(np.argmin(lengths))} is a zero vector, which has no place on the unit sphere")
    return torch.from_numpy(np.asarray(x / lengths, dtype=np.float32))
