"""Simple alternatives to whitening: centring, standardising, and removing the first principal axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multicse.evaluation.encoders.whitening import PostProcessed
from multicse.evaluation.task import Encoder

HOWS = ("centring", "standardise", "all-but-the-top")


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
