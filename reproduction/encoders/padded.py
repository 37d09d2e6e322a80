"""Word vectors as GCLSR's released code averages them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from multicse.evaluation.encoders.word_vectors import WordVectors
from multicse.models.word_module import hashed_vectors, split, word_hash

POSITIONS, EMPTY = 64, "sickeningly"
"""Places of every sentence, and the word that an empty one is given."""


class PaddedWordVectors(WordVectors):
    """As the row of GCLSR's Table 2 was made: letters alone, and the mean is over 64 places.

    Those behind the sentence hold one random vector, the same for all; a word without a vector has a random one, which the
    sentence and the place decide (there: drawn anew).
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "letters")

    @property
    def protocol(self) -> dict[str, Any]:
        """How texts become vectors, and what was left out of the texts seen so far."""
        own = super().protocol
        return {**own, "pooling": f"{own['pooling']}, over {POSITIONS} padded places"}

    def vector(self, text: str, rows: list[int]) -> np.ndarray:
        """The mean (d,) of all positions: words, random vectors for unknown ones, padding."""
        words = split(text)[:POSITIONS] or [EMPTY]
        rows_of = [self.find(word) for word in words]
        unknown = [f"{word}\n{place}\n{text}" for place, word in enumerate(words) if rows_of[place] is None]
        random = hashed_vectors(torch.tensor([word_hash(name) for name in ["", *unknown]]), self.vectors.shape[1]).numpy()
        known = self.vectors[[row for row in rows_of if row is not None]]
        total: np.ndarray = known.sum(0) + random[1:].sum(0) + (POSITIONS - len(words)) * random[0]
        return total / POSITIONS
