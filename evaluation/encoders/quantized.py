"""What sentence-transformers' ``quantize_embeddings(vectors, "int8", ranges)`` needs beside a model."""

from __future__ import annotations

import numpy as np

RANGES = "int8_ranges.npy"
"""File of an export: the smallest and the largest value of every dimension (2, d), over sentences of its training text."""


def ranges_of(vectors: np.ndarray) -> np.ndarray:
    """The smallest and the largest value of every dimension, float32 (2, d), of vectors (N, d)."""
    return np.stack([vectors.min(0), vectors.max(0)]).astype(np.float32)
