"""Untrained baselines: poolings of any layers of a transformer, whitening."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from multicse import load_plugins
from multicse.evaluation.task import Encoded, Encoder, EvaluationError
from multicse.models.pooling import pool

logger = logging.getLogger(__name__)

Single = Literal["cls", "mean", "max"]  # how the tokens of one layer become one vector
SINGLE: tuple[Single, ...] = get_args(Single)
NAMES = ["last2", "first-last", "first1-last"]
_LAYER = re.compile(r"layer(\d+)-(cls|mean|max)")

States = Sequence[Tensor]  # of l layers: l + 1 tensors (B, T, d), the first of them the embedding output
Pool = Callable[[States, Tensor], Tensor]  # states and mask (B, T) -> vectors (B, d)
POOLINGS: dict[str, Callable[[re.Match[str], int], Pool]] = {}
"""Poolings of plugins: a pattern of their names -> what makes one for a match and a number of layers."""


def is_layer_pooling(name: str) -> bool:
    """Whether `name` is one of the poolings over layers: ``layer<k>-cls|mean|max``, ``last2``, ..., or one of a plugin."""
    load_plugins()
    patterns = (_LAYER.pattern, *POOLINGS)
    return name in NAMES or any(re.fullmatch(pattern, name) for pattern in patterns)


def layer_pooling(name: str, depth: int) -> Pool:
    """The pooling `name` for a model of `depth` layers.

    ``layer<k>-cls|mean|max``  one layer; k = 0 is the embedding output, k = `depth` the last layer
    ``last2``                  mean over tokens of the average of the last two layers
    ``first-last``             ... of the embedding output and the last layer (the published "first-last" numbers)
    ``first1-last``            ... of the first transformer layer and the last (what SimCSE's code computes today)

    `is_layer_pooling` knows the names. Raises EvaluationError for a layer that the model does not have.
    """
    if found := _LAYER.fullmatch(name):
        layer, how = int(found[1]), next(how for how in SINGLE if how == found[2])
        if layer > depth:
            raise EvaluationError(f"there is no layer {layer}; the model has layers 0 (embedding output) to {depth}")
        return lambda states, mask: pool(states[layer], (), mask, how)
    for pattern, make in POOLINGS.items():
        if match := re.fullmatch(pattern, name):
            return make(match, depth)
    pairs = {"last2": (depth - 1, depth), "first-last": (0, depth), "first1-last": (1, depth)}
    first, last = pairs[name]
    return lambda states, mask: pool((states[first] + states[last]) / 2, (), mask, "mean")


# ------------------------------------------------------------------------------------------------------ fitted on texts


class PostProcessed:
    """An encoder whose vectors pass through a map that was fitted on `sentences`, each distinct one counted once.

    The map is (x - `mean`) `matrix` of vectors x (N, d), unless `transform` says otherwise.

    `source` says in `protocol` where they come from. Vectors of the fitted sentences are kept, so that scoring the
    same sentences does not encode them again.
    """

    mean: np.ndarray
    matrix: np.ndarray

    def __init__(self, encoder: Encoder, sentences: Sequence[str], label: str, source: str) -> None:
        distinct = list(dict.fromkeys(sentences))
        if len(distinct) < 2:
            raise EvaluationError(
                f"{label} is fitted on sentences and needs at least 2 distinct ones; {len(distinct)} given"
            )
        self.encoder = encoder
        self.label = label
        self.encoded = Encoded(encoder, distinct)
        digest = hashlib.sha256("\0".join(distinct).encode()).hexdigest()
        self.fitted_on = {"source": source, "sentences": len(distinct), "sha256": digest}
        self.name = f"{getattr(encoder, 'name', 'encoder')}+{label}"

    @property
    def hash(self) -> str | None:
        """sha256 of the model's files; what was fitted follows from them, `protocol` and the sentences."""
        return getattr(self.encoder, "hash", None)

    @property
    def protocol(self) -> dict[str, Any]:
        """The encoder's own, and what was fitted on what."""
        inner = getattr(self.encoder, "protocol", {})
        return {**inner, "post_processing": self.label, "fitted_on": self.fitted_on}

    def transform(self, vectors: np.ndarray) -> np.ndarray:
        """The fitted map of vectors (N, d)."""
        return (vectors - self.mean) @ self.matrix

    def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
        """Vectors (N, k), float32, of N texts."""
        if modality != "text":
            raise EvaluationError(f"{self.label} was fitted on texts; modality {modality!r} was asked for")
        vectors = self.encoded.encode(items)
        return self.transform(vectors).astype(np.float32) if len(vectors) else vectors


class Centred(PostProcessed):
    """Whitening's cheaper kin: the mean taken off (``centring``); then each dimension brought to variance 1
    (``standardise``), or the first d / 100 principal axes left out (``all-but-the-top``, Mu and Viswanath 2018)."""

    def __init__(self, encoder: Encoder, sentences: Sequence[str], how: str, *, source: str = "given") -> None:
        super().__init__(encoder, sentences, how, source)
        x = self.encoded.vectors.astype(np.float64)
        width = x.shape[1]
        self.mean, spread = x.mean(0), x.std(0)
        self.matrix = np.eye(width)
        if how == "standardise":
            self.matrix /= np.where(spread > 0, spread, 1)
        if how == "all-but-the-top":
            axes = np.linalg.svd(x - self.mean, full_matrices=False)[2][: max(1, width // 100)]
            self.matrix -= axes.T @ axes


class Whitened(PostProcessed):
    """Whitening (Su et al. 2021): mean taken off, rotated to the principal axes, each brought to variance 1.

    `dimensions` keeps the first k axes. Axes along which the sentences do not vary (the last LayerNorm of a BERT leaves
    one; fewer sentences than dimensions leave many) are left out: dividing by their spread would blow up rounding
    errors. A line in the log says how many.

    Raises EvaluationError when there are fewer than `dimensions` axes.
    """

    def __init__(
        self, encoder: Encoder, sentences: Sequence[str], dimensions: int | None = None, *, source: str = "given"
    ) -> None:
        from sklearn.decomposition import PCA

        super().__init__(encoder, sentences, f"whitening{'' if dimensions is None else dimensions}", source)
        if dimensions is not None and dimensions < 1:
            raise EvaluationError(f"whitening to {dimensions} dimensions; at least 1 is needed")
        fitted = PCA(svd_solver="covariance_eigh").fit(self.encoded.vectors.astype(np.float64))
        self.mean, values, width = fitted.mean_, fitted.explained_variance_, len(fitted.mean_)
        rank = int((values > 1e-10 * values[0]).sum()) if values[0] > 0 else 0
        if rank < (dimensions or 1):
            raise EvaluationError(
                f"{self.label}: {len(self.encoded.vectors):,} sentences vary along {rank} of {width} dimensions; "
                "ask for fewer dimensions, or fit on more sentences"
            )
        if dimensions is None and rank < width:
            logger.info("whitening keeps %d of %d dimensions; the sentences do not vary along the rest", rank, width)
        kept = dimensions or rank
        self.fitted_on["dimensions"] = kept
        self.matrix = fitted.components_[:kept].T / np.sqrt(values[:kept])
