"""Averaged word vectors (GloVe mean, word2vec avg): the baseline without any context."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from multicse.data.errors import DataError
from multicse.data.word_vectors import open_vectors
from multicse.evaluation.task import EvaluationError
from multicse.models.word_module import split

logger = logging.getLogger(__name__)

_PIECE = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


class WordVectors:
    """Mean of the vectors of a sentence's words, from a word2vec or GloVe file or a folder (`data/word_vectors.py`).

    `pooling`:

    ``mean``     split at white space; a token that the vocabulary does not have, also not in lower case, is split at
                 punctuation (``"dog."``) and its pieces are looked up in the same way
    ``letters``  the text is cleaned first as GCLSR does: apostrophes dropped, lower case, all but a to z blank

    Words without a vector are left out of the mean, and a sentence without any word that has one gets the zero vector
    (cosine 0 with everything). Both are counted over the distinct texts, in `protocol`.

    Raises EvaluationError for what `open_vectors` refuses: a missing, broken or pickled file or folder.
    """

    def __init__(self, path: str | Path, pooling: str | None = None) -> None:
        self.pooling = pooling or "mean"
        if self.pooling not in _POOLINGS:
            known = ", ".join((*_POOLINGS, *POOLINGS))
            raise EvaluationError(f"unknown pooling {pooling!r} of word vectors; they are averaged, by {known}")
        self.path = Path(path).expanduser()
        self.name = self.path.name.split(".")[0]
        try:
            self._table = open_vectors(self.path)
        except DataError as error:
            raise EvaluationError(str(error)) from error
        self.row, self.vectors = self._table.row, self._table.vectors
        self._seen: set[str] = set()
        self.words = self.unknown = self.empty = 0

    @cached_property
    def hash(self) -> str:
        """sha256 of the file, or of the folder's words and vectors."""
        return self._table.hash

    @property
    def protocol(self) -> dict[str, Any]:
        """How texts become vectors, and what was left out of the texts seen so far."""
        return {
            "pooling": f"mean of word vectors{_POOLINGS[self.pooling][0]}",
            "post_processing": None,
            "max_tokens": None,
            "device": "cpu",
            "vocabulary": len(self.row),
            "words": self.words,
            "unknown_words": self.unknown,
            "texts_without_known_word": self.empty,
        }

    def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
        """Vectors (N, d), float32, of N texts."""
        if modality != "text":
            raise EvaluationError(f"word vectors encode texts only; modality {modality!r} was asked for")
        vectors = np.zeros((len(items), self.vectors.shape[1]), dtype=np.float32)
        for i, text in enumerate(items):
            rows, unknown = self._look_up(text)
            if (vector := self.vector(text, rows)) is not None:
                vectors[i] = vector
            if text not in self._seen:
                self._seen.add(text)
                self.words += len(rows) + unknown
                self.unknown += unknown
                self.empty += not rows
        logger.info("%s: %d of %d words so far have no vector", self.name, self.unknown, self.words)
        return vectors

    def vector(self, text: str, rows: list[int]) -> np.ndarray | None:
        """The vector (d,) of a text whose known words have these rows; None: the zero vector."""
        return self.vectors[rows].mean(axis=0) if rows else None

    def known_words(self, text: str) -> tuple[list[str], np.ndarray]:
        """The words of a text that have a vector, and these vectors (n, d)."""
        rows, _ = self._look_up(text)
        return [self._table.words[row] for row in rows], self.vectors[rows]

    def _look_up(self, text: str) -> tuple[list[int], int]:
        """Rows of the words that have a vector, and how many words have none (punctuation is no word)."""
        rows, unknown = [], 0
        for token in _POOLINGS[self.pooling][1](text):
            row = self.find(token)
            for piece in [token] if row is not None else _PIECE.findall(token):
                row = self.find(piece)
                if row is not None:
                    rows.append(row)
                elif any(c.isalnum() for c in piece):
                    unknown += 1
        return rows, unknown

    def find(self, word: str) -> int | None:
        """The row of a word as it is written, or in lower case."""
        return self.row.get(word, self.row.get(word.lower()))


_POOLINGS: dict[str, tuple[str, Callable[[str], list[str]]]] = {
    "mean": ("", str.split),
    "letters": (", letters a to z only", split),
}
"""What the protocol says of each, and how texts are split."""
POOLINGS: dict[str, Callable[[Path], WordVectors]] = {}
"""Other ways of plugins, by their names."""
