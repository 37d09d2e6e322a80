"""Interfaces of tasks and encoders, and functions that run tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np


class EvaluationError(ValueError):
    """A task, its data or an encoder's output is unusable; the text names the file, line or sentence and the fix."""


class Encoder(Protocol):
    """Anything that turns items into embeddings: a model folder, a model in training, a baseline.

    Items are texts; decoded RGB images, uint8 (H, W, 3), with modality "image"; or `Sound`s with modality "audio". An
    encoder that was trained contrastively may have a `logit_scale`, the factor of the cosines in its loss.
    """

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        """Encode items.

        Args:
            items: N items.
            modality: "text", "image" or "audio".

        Returns:
            Embeddings (N, d), in the order of the items.
        """
        ...


class Sound(NamedTuple):
    """An audio clip: mono samples (T,), float32 in [-1, 1], and the sampling frequency in hertz."""

    samples: np.ndarray
    rate: int


class Score(NamedTuple):
    """The result of a task."""

    metrics: dict[str, float]
    details: dict[str, Any] = {}
    """Further entries of the report, such as counts."""
    examples: np.ndarray | None = None
    """Values (N,) for a paired test: the cosine of every pair, or whether each example was right."""


@runtime_checkable
class Task(Protocol):
    """An evaluation: the sentences that it needs, and the scores of an encoder."""

    name: str
    primary: str
    """Main metric, on which a checkpoint is chosen; higher is better, unless the task has a true `lower_is_better`."""

    def sentences(self) -> list[str]:
        """Return the distinct sentences that `score` will encode."""
        ...

    def score(self, encoder: Encoder) -> Score:
        """Return metrics by name (correlations, accuracies and similar in points, 100 = perfect), and details."""
        ...


def metric_name(text: str) -> str:
    """Replace characters that MLflow does not allow in names of metrics by hyphens."""
    return re.sub(r"[^a-zA-Z0-9_.-]+", "-", text)


def embed(encoder: Encoder, items: list[Any], modality: str = "text") -> np.ndarray:
    """Encode items and check the result.

    Args:
        encoder: Encoder of the items.
        items: N texts, images or audio clips.
        modality: "text", "image" or "audio".

    Returns:
        Embeddings (N, d) in the precision of the encoder.

    Raises:
        EvaluationError: The encoder returns a wrong number of rows, or a value that is not finite (a NaN would otherwise
            turn into a plausible rank).
    """
    vectors = np.asarray(encoder.encode([*items], modality))  # a copy: the encoder may be a user's
    if vectors.ndim != 2 or len(vectors) != len(items):
        raise EvaluationError(f"the encoder returned shape {vectors.shape} for {len(items):,} items, expected (N, d)")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        which = repr(items[bad[0]][:80]) if modality == "text" else f"the {modality} number {bad[0]}"
        raise EvaluationError(
            f"{len(bad):,} of {len(items):,} embeddings contain NaN or infinity, first for {which}; the model has diverged "
            "or overflows (try --device cpu or fp32)"
        )
    return vectors


def look_up(encoder: Encoder, *sides: Sequence[str]) -> list[np.ndarray]:
    """Encode several lists of texts, each distinct text once.

    Args:
        encoder: Encoder of the texts.
        *sides: Lists of texts.

    Returns:
        Embeddings (N, d) of each list.
    """
    row = {text: i for i, text in enumerate(dict.fromkeys(text for side in sides for text in side))}
    vectors = embed(encoder, list(row))
    return [vectors[[row[text] for text in side]] for side in sides]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale rows (N, d) to unit length, float64; a row of zeros stays zero."""
    rows = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


class Encoded:
    """Cache of encoded texts with the interface of an encoder. Other items are passed to `encoder`."""

    def __init__(self, encoder: Encoder, texts: Iterable[str]) -> None:
        self.encoder = encoder
        distinct = list(dict.fromkeys(texts))
        self.row = {text: i for i, text in enumerate(distinct)}
        self.vectors = embed(encoder, distinct) if distinct else np.zeros((0, 0))

    @property
    def logit_scale(self) -> float | None:
        """The logit scale of the encoder, or None."""
        return getattr(self.encoder, "logit_scale", None)

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        """Return the embeddings (N, d) of items.

        Args:
            items: N items of one modality; see `Encoder.encode`.
            modality: Modality of the items.
        """
        if modality != "text" or any(item not in self.row for item in items):
            return self.encoder.encode(items, modality)
        return self.vectors[[self.row[item] for item in items]]


def encode_once(tasks: Sequence[Task], encoder: Encoder) -> Encoded:
    """Encode the distinct sentences of all tasks in one call (STS-B repeats much of STS12-16).

    With a single call, an evaluation during training needs one collective, however many tasks there are.

    Args:
        tasks: Tasks that will be scored.
        encoder: Encoder of the sentences.
    """
    return Encoded(encoder, (sentence for task in tasks for sentence in task.sentences()))
