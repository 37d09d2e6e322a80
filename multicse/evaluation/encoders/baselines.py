"""Baselines without training: poolings over any layers of a transformer, and whitening."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from multicse import plugins
from multicse.evaluation.task import Encoded, Encoder, EvaluationError
from multicse.models.pooling import pool

logger = logging.getLogger(__name__)

SINGLE: tuple[Literal["cls", "mean", "max"], ...] = ("cls", "mean", "max")
"""Poolings of the tokens of one layer."""
PAIRS = {"last2": (-2, -1), "first-last": (0, -1), "first1-last": (1, -1)}
"""Layers that are averaged, by pooling; 0 is the embedding output."""
DITTO = re.compile(r"ditto(?:(\d+)-(\d+))?")
"""Layer and head of the attention; without numbers, `DITTO_BERT_BASE`."""
DITTO_BERT_BASE = (1, 10)

States = Sequence[Tensor]  # embedding output and states of l layers: l + 1 tensors (B, T, d)
Pool = Callable[[States, Tensor], Tensor]  # states and mask (B, T) -> vectors (B, d)


def _one_layer(match: re.Match[str], depth: int) -> Pool:
    layer, how = int(match[1]), next(how for how in SINGLE if how == match[2])
    if layer > depth:
        raise EvaluationError(f"pooling {match[0]!r}: layer {layer} does not exist; choose 0 (embedding output) to {depth}")
    return lambda states, mask: pool(states[layer], (), mask, how)


def _two_layers(match: re.Match[str], depth: int) -> Pool:
    first, last = PAIRS[match[0]]
    return lambda states, mask: pool((states[first] + states[last]) / 2, (), mask, "mean")


def _ditto(match: re.Match[str], depth: int) -> Pool:
    return lambda states, mask: ((states[0] + states[-1]) / 2 * mask.unsqueeze(-1)).sum(1)


class LayerPooling(NamedTuple):
    """Family of poolings whose names match a regular expression."""

    make: Callable[[re.Match[str], int], Pool]
    """Function of the match and the number of layers that returns a pooling."""
    names: tuple[str, ...]
    """Names, or examples of names, for messages."""


plugins.add("pooling", "|".join(PAIRS), LayerPooling(_two_layers, tuple(PAIRS)))
plugins.add("pooling", DITTO.pattern, LayerPooling(_ditto, ("ditto",)))
plugins.add("pooling", r"layer(\d+)-(cls|mean|max)", LayerPooling(_one_layer, ("layer1-cls", "layer1-mean", "layer1-max")))


def is_layer_pooling(name: str) -> bool:
    """Return True if `name` is a pooling of `layer_pooling`."""
    return any(re.fullmatch(pattern, name) for pattern in plugins.every("pooling"))


def layer_pooling(name: str, depth: int) -> Pool:
    """Return a pooling over hidden states by its name.

    ``layer<k>-cls|mean|max``  one layer; k = 0 is the embedding output, k = `depth` the last layer
    ``last2``                  mean over tokens of the average of the last two layers
    ``first-last``             ... of the embedding output and the last layer (the published "first-last" numbers)
    ``first1-last``            ... of the first and the last transformer layer (as in SimCSE's current code)
    ``ditto<k>-<h>``           as ``first-last``, but the sum over tokens with the weights in `mask`: the attention of each
                               token to itself in head h of layer k, counted from 1 (Chen et al., Ditto, EMNLP 2023)

    Raises:
        EvaluationError: If the model does not have the layer.
    """
    matches = ((one, re.fullmatch(pattern, name)) for pattern, one in plugins.every("pooling").items())
    return next(one.make(match, depth) for one, match in matches if match)


# ------------------------------------------------------------------------------------------------------ fitted on texts


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


class Centred(PostProcessed):
    """Subtract the mean (``centring``), and scale each dimension to variance 1 (``standardise``).

    With ``all-but-the-top``, remove the first d / 100 principal axes instead (Mu and Viswanath, ICLR 2018).
    """

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
