"""What a task is, what it may ask of an encoder, and the one way to run several tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np


class EvaluationError(ValueError):
    """A task, its data or an encoder's output is unusable; the text names the file, line or sentence and the fix."""


class Encoder(Protocol):
    """Anything that updates items into vectors: a folder, a model in training, a baseline.

    Items are texts; decoded RGB images, uint8 (H, W, 3), with modality "image"; `Sound`s with modality "audio". An encoder
    that was trained contrastively may have a `logit_scale`, the factor before cosines in its loss.
    """

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        """Vectors (N, d) of N items, in their order."""
        ...


class Sound(NamedTuple):
    """A clip: mono samples (T,), float32 in [-1, 1], and its sample rate in hertz."""

    samples: np.ndarray
    rate: int


class Score(NamedTuple):
    """What a task measured: metrics by name, and what stands beside them in a report (counts, scores of the parts).

    `examples` (N,) is what a paired test on this set needs: the cosine of every pair, or which examples were right.
    """

    metrics: dict[str, float]
    details: dict[str, Any] = {}
    examples: np.ndarray | None = None


@dataclass(frozen=True)
class Probing:
    """How tasks that train a classifier do it: by which protocol, with a hidden layer of which width (0: none), and by which
    seed of folds, order and weights."""

    preset: str = "test"
    hidden: int = 0
    seed: int = 1111


@runtime_checkable
class Task(Protocol):
    """One evaluation: which sentences it needs, and the numbers an encoder gets."""

    name: str
    # The metric that stands for the task in a table, and that selection may use: the highest, unless the task has an
    # attribute `lower_is_better` that is true.
    primary: str

    def sentences(self) -> list[str]:
        """The distinct sentences that `score` will ask the encoder for."""
        ...

    def score(self, encoder: Encoder) -> Score:
        """Metrics by name (correlations, accuracies and the like in points, 100 = perfect), and details."""
        ...


def embed(encoder: Encoder, items: list[Any], modality: str = "text") -> np.ndarray:
    """Vectors (N, d), in the encoder's precision, of N items, checked.

    Raises EvaluationError when the encoder returns the wrong number of rows or a value that is not finite (a NaN would
    otherwise turn into a plausible rank).
    """
    vectors = np.asarray(encoder.encode(items, modality))
    if vectors.ndim != 2 or len(vectors) != len(items):
        raise EvaluationError(f"the encoder gave shape {vectors.shape} for {len(items):,} items; encode must return (N, d)")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        which = repr(shorten(items[bad[0]])) if modality == "text" else f"the {modality} number {bad[0]}"
        raise EvaluationError(
            f"{len(bad):,} of {len(items):,} embeddings hold NaN or infinity, the first for {which}; the model has diverged "
            "or overflows (try --device cpu or fp32)"
        )
    return vectors


def look_up(encoder: Encoder, *sides: Sequence[str]) -> list[np.ndarray]:
    """Vectors (N, d) of each list of texts; of all lists together each distinct text is encoded once."""
    row = {text: i for i, text in enumerate(dict.fromkeys(text for side in sides for text in side))}
    vectors = embed(encoder, list(row))
    return [vectors[[row[text] for text in side]] for side in sides]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows (N, d) at unit length in float64; a zero row stays zero, its cosine is 0 with everything."""
    rows = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():
        raise EvaluationError("an embedding holds NaN or infinity; the model has diverged or overflows")
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


class Encoded:
    """Texts that were encoded already, as an encoder: looks rows up, and asks `encoder` for what it does not hold."""

    def __init__(self, encoder: Encoder, texts: Iterable[str]) -> None:
        self.encoder = encoder
        distinct = list(dict.fromkeys(texts))
        self.row = {text: i for i, text in enumerate(distinct)}
        self.vectors = embed(encoder, distinct) if distinct else np.zeros((0, 0))

    @property
    def logit_scale(self) -> float | None:
        """That of the encoder; None: it has none."""
        return getattr(self.encoder, "logit_scale", None)

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        """Vectors (N, d) of N items."""
        if modality != "text" or any(item not in self.row for item in items):
            return self.encoder.encode(items, modality)
        return self.vectors[[self.row[item] for item in items]]


def encode_once(tasks: Sequence[Task], encoder: Encoder) -> Encoded:
    """The sentences of all tasks, each distinct one encoded once, in one call (STS-B repeats much of STS12-16).

    One call also makes evaluation inside training one collective per evaluation, however many tasks there are.
    """
    return Encoded(encoder, (sentence for task in tasks for sentence in task.sentences()))


def evaluate(tasks: Sequence[Task], encoder: Encoder) -> dict[str, dict[str, float]]:
    """Metrics by task name: ``{"stsb-dev": {"spearman": 79.1, ...}, ...}``."""
    encoded = encode_once(tasks, encoder)
    return {task.name: task.score(encoded).metrics for task in tasks}


def shorten(text: str, limit: int = 80) -> str:
    """The beginning of a text, for a message."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
