"""Whitening of vectors, and the interface of other maps that are fitted on sentences."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from multicse.evaluation.task import Encoded, Encoder, EvaluationError

logger = logging.getLogger(__name__)


class PostProcessed:
    """Encoder with a map of its vectors that is fitted on distinct sentences, whose vectors it stores.

    Args:
        encoder: Encoder.
        sentences: Sentences to fit on, at least 2 different ones.
        label: Name of the map.
        source: Description of the sentences in `protocol`.
    """

    mean: np.ndarray  # (d,)
    matrix: np.ndarray  # (d, k)

    def __init__(self, encoder: Encoder, sentences: Sequence[str], label: str, source: str) -> None:
        distinct = list(dict.fromkeys(sentences))
        if len(distinct) < 2:
            raise EvaluationError(f"{label} needs at least 2 distinct sentences to fit on; {len(distinct)} given")
        self.encoder = encoder
        self.label = label
        self.encoded = Encoded(encoder, distinct)
        digest = hashlib.sha256("\0".join(distinct).encode()).hexdigest()
        self.fitted_on = {"source": source, "sentences": len(distinct), "sha256": digest}
        self.name = f"{getattr(encoder, 'name', 'encoder')}+{label}"

    @property
    def hash(self) -> str | None:
        """Return the SHA-256 of the model's files."""
        return getattr(self.encoder, "hash", None)

    @property
    def protocol(self) -> dict[str, Any]:
        """Return the protocol of the encoder, with the map and the sentences it was fitted on."""
        inner = getattr(self.encoder, "protocol", {})
        return {**inner, "post_processing": self.label, "fitted_on": self.fitted_on}

    def transform(self, vectors: np.ndarray) -> np.ndarray:
        """Map vectors (N, d) to (x - mean) matrix, (N, k)."""
        return (vectors - self.mean) @ self.matrix

    def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
        """Encode N texts and apply the map: (N, k), float32."""
        if modality != "text":
            raise EvaluationError(f"{self.label} supports only texts, not modality {modality!r}; remove +{self.label}")
        vectors = self.encoded.encode(items)
        return self.transform(vectors).astype(np.float32) if len(vectors) else vectors


class Whitened(PostProcessed):
    """PCA whitening: centre vectors, rotate them to the principal axes and scale each axis to variance 1.

    Axes without variance are removed, since scaling them would amplify rounding errors. The last LayerNorm of BERT creates
    one such axis, fewer sentences than dimensions create many. At most `dimensions` axes are kept.

    References:
        Su et al., Whitening Sentence Representations for Better Semantics and Faster Retrieval, 2021.
    """

    def __init__(
        self, encoder: Encoder, sentences: Sequence[str], dimensions: int | None = None, *, source: str = "given"
    ) -> None:
        from sklearn.decomposition import PCA

        super().__init__(encoder, sentences, f"whitening{'' if dimensions is None else dimensions}", source)
        if dimensions is not None and dimensions < 1:
            raise EvaluationError(f"+whitening{dimensions}: the number of dimensions must be at least 1")
        fitted = PCA(svd_solver="covariance_eigh").fit(self.encoded.vectors.astype(np.float64))
        self.mean, values, width = fitted.mean_, fitted.explained_variance_, len(fitted.mean_)
        rank = int((values > 1e-10 * values[0]).sum()) if values[0] > 0 else 0
        if rank < (dimensions or 1):
            raise EvaluationError(
                f"{self.label}: {len(self.encoded.vectors):,} sentences vary along {rank} of {width} dimensions; "
                "choose fewer dimensions, or fit on more sentences"
            )
        if dimensions is None and rank < width:
            logger.info("whitening keeps %d of %d dimensions; the other dimensions have no variance", rank, width)
        kept, count = dimensions or rank, len(self.encoded.vectors)
        if kept >= count - 1:
            raise EvaluationError(
                f"{self.label}: after whitening in {kept} dimensions, {count:,} sentences have equal distances to each "
                f"other; fit on more sentences (--fit FILE), or keep fewer dimensions (+whitening{max(1, count // 5)}, or "
                "export.dimensions)"
            )
        self.fitted_on["dimensions"] = kept
        self.matrix = fitted.components_[:kept].T / np.sqrt(values[:kept])
