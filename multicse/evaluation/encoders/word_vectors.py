"""Averaged word vectors (GloVe mean, word2vec avg): the baseline without context."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from multicse import plugins
from multicse.data.errors import DataError
from multicse.data.word_vectors import open_vectors
from multicse.evaluation.task import EvaluationError

logger = logging.getLogger(__name__)

COUNTED = 2**18
"""Texts over which unknown words are counted; the hashes of all texts of a corpus would take its memory."""
_PIECE = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


class WordVectors:
    """Encoder that averages the vectors of the words of a sentence (`data/word_vectors.py`).

    Poolings:

    ``mean``     split at white space; tokens that are not in the vocabulary, also not in lower case, are split at
                 punctuation (``"dog."``) and their parts are looked up in the same way
    ``letters``  clean texts first as in GCLSR: remove apostrophes, lower-case, replace all but a to z by blanks

    Words without a vector are not part of the mean. A sentence without any known word gets the zero vector, which has
    cosine similarity 0 with all vectors. `protocol` counts both over the first `COUNTED` distinct texts.

    Args:
        path: Word2vec or GloVe file, or a folder of word vectors.
        pooling: ``mean`` or ``letters``.
    """

    def __init__(self, path: str | Path, pooling: str = "mean") -> None:
        self.pooling = pooling
        self.path = Path(path).expanduser()
        self.name = self.path.name.split(".")[0]
        try:
            self._table = open_vectors(self.path)
        except DataError as error:
            raise EvaluationError(str(error)) from error
        self.row, self.vectors = self._table.row, self._table.vectors
        self._seen: set[int] = set()
        self.words = self.unknown = self.empty = 0

    @cached_property
    def hash(self) -> str:
        """Return the SHA-256 of the file, or of the folder's words and vectors."""
        return self._table.hash

    @property
    def protocol(self) -> dict[str, Any]:
        """Return how texts are encoded, and counts of unknown words in the texts so far."""
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
        """Encode N texts as vectors (N, d), float32."""
        if modality != "text":
            raise EvaluationError(
                f"word vectors encode only texts, not modality {modality!r}; remove the task or choose a different model"
            )
        vectors = np.zeros((len(items), self.vectors.shape[1]), dtype=np.float32)
        for i, text in enumerate(items):
            rows, unknown = self._look_up(text)
            if (vector := self.vector(text, rows)) is not None:
                vectors[i] = vector
            if len(self._seen) < COUNTED and (seen := hash(text)) not in self._seen:
                self._seen.add(seen)
                self.words += len(rows) + unknown
                self.unknown += unknown
                self.empty += not rows
        logger.info("%s: %d of %d words so far have no vector", self.name, self.unknown, self.words)
        return vectors

    def vector(self, text: str, rows: list[int]) -> np.ndarray | None:
        """Return the vector (d,) of a text with these rows of `vectors`; None for the zero vector."""
        return self.vectors[rows].mean(axis=0) if rows else None

    def _look_up(self, text: str) -> tuple[list[int], int]:
        """Return the rows of known words and the number of unknown words, without punctuation."""
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
        """Return the row of a word, or of the word in lower case; None if both are unknown."""
        return self.row.get(word, self.row.get(word.lower()))


def _letters(text: str) -> list[str]:
    from multicse.models.word_module import split  # here: takes seconds, and this module is imported for its name

    return split(text)


_POOLINGS: dict[str, tuple[str, Callable[[str], list[str]]]] = {
    "mean": ("", str.split),
    "letters": (", letters a to z only", _letters),
}
"""Text in the protocol and function that splits texts, by pooling."""
for _pooling in _POOLINGS:
    plugins.add("word pooling", _pooling, partial(WordVectors, pooling=_pooling))


def open_words(path: str | Path, pooling: str | None = None) -> WordVectors:
    """Open word vectors; the default pooling is ``mean``. Raise EvaluationError if the pooling is not known."""
    try:
        make: Callable[[str | Path], WordVectors] = plugins.get("word pooling", pooling or "mean")
    except ValueError as error:
        raise EvaluationError(str(error)) from None
    return make(path)
