"""Vectors of 8 bits or of one bit a dimension, as sentence-transformers makes them (`quantize_embeddings`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from multicse.evaluation.task import Encoded, EvaluationError

Precision = Literal["int8", "binary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
RANGES = "int8_ranges.npy"
"""File of an export: the smallest and the largest value of every dimension (2, d), over sentences of its training text."""


class Quantized:
    """A model whose vectors are rounded; its name ends in the precision.

    ``int8``: every coordinate is one of 256 steps, -128 to 127, between the smallest and the largest value of its dimension
    over `sentences`, or as `ranges` (2, d) state them. ``binary``: only the sign is kept, +1 for positive and -1 else. The
    cosine of two such vectors is 1 - 2 h / d for the Hamming distance h of their bits, so that correlations and neighbours
    by cosine are those by Hamming distance.

    source: where sentences or ranges come from, for `protocol`. Raises EvaluationError for int8 with neither.
    """

    def __init__(
        self,
        model: Any,
        precision: Precision,
        sentences: Sequence[str] = (),
        source: str = "given",
        ranges: np.ndarray | None = None,
    ) -> None:
        self.model, self.precision = model, precision
        self.name, self.hash = f"{model.name}+{precision}", model.hash
        self.encoded = Encoded(model, sentences)
        self.fitted: dict[str, Any] = {}
        if precision == "int8":
            if ranges is None and len(self.encoded.row) < 2:
                raise EvaluationError("+int8 takes the range of every dimension over sentences; give two or more (--fit)")
            ranges = ranges_of(self.encoded.vectors) if ranges is None else ranges
            self.fitted = {"source": source, "sha256": hashlib.sha256(ranges.tobytes()).hexdigest()}
        self.ranges = ranges

    @property
    def protocol(self) -> dict[str, Any]:
        """The model's own, the precision, and of int8 where the ranges come from."""
        return {**self.model.protocol, "precision": self.precision, **({"ranges": self.fitted} if self.fitted else {})}

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        """Vectors (N, d), float32, of N items; of int8 for texts only, as the ranges are theirs."""
        from sentence_transformers.util.quantization import quantize_embeddings

        if modality != "text" and self.precision == "int8":
            raise EvaluationError(f"+int8 has the ranges of texts; modality {modality!r} was asked for (+binary takes any)")
        vectors = self.encoded.encode(items, modality)
        if not len(vectors):
            return vectors
        if self.precision == "int8":
            return np.asarray(quantize_embeddings(vectors, "int8", self.ranges), dtype=np.float32)
        packed = np.asarray(quantize_embeddings(vectors, "ubinary"))
        return 2 * np.unpackbits(packed, axis=1, count=vectors.shape[1]).astype(np.float32) - 1


def ranges_of(vectors: np.ndarray) -> np.ndarray:
    """The smallest and the largest value of every dimension, float32 (2, d), of vectors (N, d)."""
    return np.stack([vectors.min(0), vectors.max(0)]).astype(np.float32)


def saved_ranges(folder: Path) -> np.ndarray | None:
    """Those that an export states."""
    return np.load(folder / RANGES, allow_pickle=False) if (folder / RANGES).is_file() else None
