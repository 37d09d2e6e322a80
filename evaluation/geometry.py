"""Alignment and uniformity (Wang & Isola 2020): how close positives are, how evenly all sentences fill the sphere."""

from __future__ import annotations

import numpy as np
import torch

from evaluation.sts import PairTask
from evaluation.task import Encoder, EvaluationError, Score, embed
from trainers import losses


def alignment(x: np.ndarray, y: np.ndarray) -> float:
    """mean ||x_i - y_i||^2 of positive pairs x, y (N, d), brought to unit length first; 0 to 4, lower is better.

    Left unnormalised the number is a matter of vector lengths (in the hundreds for BERT).
    """
    return losses.alignment(_unit(x), _unit(y)).item()


def uniformity(x: np.ndarray) -> float:
    """log mean_{i<j} exp(-2 ||x_i - x_j||^2) of x (N, d), brought to unit length first; lower is better."""
    if len(x) < 2:
        raise EvaluationError(f"uniformity is over pairs of sentences; {len(x)} sentence was given")
    return losses.uniformity(_unit(x)).item()


class GeometryTask:
    """Alignment of the pairs rated above `threshold`, uniformity of all distinct sentences, of one pair task.

    SimCSE's convention on STS-B: positives are the pairs rated above 4 of 5. Not in points.
    """

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
        """``alignment`` and ``uniformity``; how many pairs and sentences they are over."""
        sentences = self.sentences()
        vectors = embed(encoder, sentences)
        row = {text: i for i, text in enumerate(sentences)}
        first = [row[self.pairs.pairs.first[i]] for i in self.positives]
        second = [row[self.pairs.pairs.second[i]] for i in self.positives]
        metrics = {"alignment": alignment(vectors[first], vectors[second]), "uniformity": uniformity(vectors)}
        counts = {"positives": len(self.positives), "threshold": self.threshold, "sentences": len(sentences)}
        return Score(metrics, counts)


def _unit(x: np.ndarray) -> torch.Tensor:
    """Rows of x (N, d) at unit length; a zero row has no direction and is refused."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise EvaluationError(f"row {int(np.argmin(lengths))} is a zero vector, which has no place on the unit sphere")
    return torch.from_numpy(np.asarray(x / lengths, dtype=np.float32))
