"""Averaged word vectors (GloVe mean, word2vec avg): the baseline without any context."""

from __future__ import annotations

import gzip
import hashlib
import logging
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.task import EvaluationError, did_you_mean

logger = logging.getLogger(__name__)

TEXT, BINARY = (".txt", ".vec"), (".bin",)
SUFFIXES = (*TEXT, *BINARY)  # each also with .gz after it
PICKLED = (".kv", ".model", ".pkl", ".pickle")
_PIECE = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def is_word_vectors(path: Path) -> bool:
    """Whether the name is that of a word-vector file (or of one that `WordVectors` refuses with a way out)."""
    return _kind(path) in (*SUFFIXES, *PICKLED) or path.suffix == ".gz"


class WordVectors:
    """Mean of the vectors of a sentence's words, from a word2vec or GloVe file.

    Text (.txt, .vec, with or without the header line) or word2vec's binary form (.bin), each also with .gz. `pooling`:

    ``mean``   split at white space; a token that the vocabulary does not have, also not in lower case, is split at
               punctuation (``"dog."``) and its pieces are looked up in the same way
    ``gclsr``  the text is cleaned first as GCLSR does: apostrophes dropped, lower case, all but a to z blank

    Words without a vector are left out of the mean, and a sentence without any word that has one gets the zero vector
    (cosine 0 with everything); both are counted over the distinct texts, in `protocol` and in the log. (GCLSR gave
    unknown words a random vector, another one each time.)

    Raises EvaluationError for a missing, broken or pickled file, naming the line where that can be found.
    """

    def __init__(self, path: str | Path, pooling: str | None = None) -> None:
        self.pooling = pooling or "mean"
        if self.pooling not in _SPLITS:
            raise EvaluationError(
                f"unknown pooling {pooling!r} of word vectors{did_you_mean(self.pooling, _SPLITS)} They are averaged: "
                f"{', '.join(_SPLITS)}"
            )
        self.path = Path(path).expanduser()
        self.name = self.path.name.split(".")[0]
        self.row, self.vectors = _read(self.path)
        self._seen: set[str] = set()
        self.words = self.unknown = self.empty = 0

    @cached_property
    def hash(self) -> str:
        """sha256 of the file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @property
    def protocol(self) -> dict[str, Any]:
        """How texts become vectors, and what was left out of the texts seen so far."""
        return {
            "pooling": "mean of word vectors" + (", text cleaned as GCLSR does" if self.pooling == "gclsr" else ""),
            "post_processing": None,
            "max_tokens": None,
            "texts_cut": 0,
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
        before = self.words, self.unknown, self.empty
        for i, text in enumerate(items):
            rows, unknown = self._look_up(text)
            if rows:
                vectors[i] = self.vectors[rows].mean(axis=0)
            if text not in self._seen:
                self._seen.add(text)
                self.words += len(rows) + unknown
                self.unknown += unknown
                self.empty += not rows
        words, unknown, empty = (
            now - then for now, then in zip((self.words, self.unknown, self.empty), before, strict=True)
        )
        if unknown:
            logger.info(
                "%s: %d of %d words (%.1f %%) have no vector and were left out; %d texts have no known word and got the "
                "zero vector", self.name, unknown, words, 100 * unknown / words, empty
            )  # fmt: skip
        return vectors

    def known_words(self, text: str) -> tuple[list[str], np.ndarray]:
        """The words of a text that have a vector, and these vectors (n, d)."""
        rows, _ = self._look_up(text)
        names = self._names
        return [names[row] for row in rows], self.vectors[rows]

    @cached_property
    def _names(self) -> list[str]:
        return list(self.row)

    def _look_up(self, text: str) -> tuple[list[int], int]:
        """Rows of the words that have a vector, and how many words have none (punctuation is no word)."""
        rows, unknown = [], 0
        for token in _SPLITS[self.pooling](text):
            row = self._find(token)
            for piece in [token] if row is not None else _PIECE.findall(token):
                row = self._find(piece)
                if row is not None:
                    rows.append(row)
                elif any(c.isalnum() for c in piece):
                    unknown += 1
        return rows, unknown

    def _find(self, word: str) -> int | None:
        return self.row.get(word, self.row.get(word.lower()))


def clean(text: str) -> str:
    """GCLSR's cleaning: apostrophes dropped, lower case, everything but a to z blank."""
    return re.sub(r"[^a-z]+", " ", re.sub("['’]", "", text.lower())).strip()


_SPLITS: dict[str, Callable[[str], list[str]]] = {"mean": str.split, "gclsr": lambda text: clean(text).split()}


def _kind(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def _read(path: Path) -> tuple[dict[str, int], np.ndarray]:
    """Row by word, and vectors (V, d) float32."""
    if _kind(path) in PICKLED:
        raise EvaluationError(
            f"{path} holds pickled objects, which can run any code when they are loaded. If you trust it, convert it once: "
            f"gensim.models.KeyedVectors.load({str(path)!r}).save_word2vec_format('vectors.bin', binary=True)"
        )
    if not path.is_file():
        raise EvaluationError(f"no word-vector file {path}")
    if _kind(path) not in SUFFIXES:
        raise EvaluationError(
            f"{path} is no word-vector file; they end in {', '.join(SUFFIXES)}, or in one of these and .gz"
        )
    from gensim.models import KeyedVectors

    binary = _kind(path) in BINARY
    try:
        header = binary or _has_header(path)
        loaded = KeyedVectors.load_word2vec_format(str(path), binary=binary, no_header=not header)
    except (ValueError, TypeError, EOFError, OSError, AssertionError) as error:  # UnicodeDecodeError is a ValueError
        where = "" if binary else _first_bad_line(path)
        raise EvaluationError(f"{path}{where}: not a word-vector file that gensim reads: {error}") from error
    vectors = np.asarray(loaded.vectors, dtype=np.float32)
    if not len(vectors) or not vectors.shape[1]:
        raise EvaluationError(f"{path} holds no word vector")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise EvaluationError(f"{path}: the vector of {loaded.index_to_key[bad[0]]!r} holds NaN or infinity")
    # gensim spreads a line of a single number over all dimensions. Reading every line again is for doubtful files only.
    if not binary and vectors.shape[1] > 1 and (vectors == vectors[:, :1]).all(axis=1).any():
        where = _first_bad_line(path)
        if where:
            raise EvaluationError(f"{path}{where}")
    return dict(loaded.key_to_index), vectors


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _has_header(path: Path) -> bool:
    """word2vec's text form begins with a line of two numbers, how many words and dimensions; GloVe's does not."""
    with _open(path) as file:
        first = file.readline().split()
    return len(first) == 2 and all(part.isdigit() for part in first)


def _first_bad_line(path: Path) -> str:
    """``, line 7 has 299 numbers after the word; 300 are expected`` when a line is the fault."""
    try:
        with _open(path) as file:
            width = None
            for number, line in enumerate(file, 1):
                parts = line.rstrip().split(b" ")
                if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
                    width = int(parts[1])
                    continue
                width = width if width is not None else len(parts) - 1
                if len(parts) - 1 != width:
                    return f", line {number} has {len(parts) - 1} numbers after the word; {width} are expected"
                for part in parts[1:]:
                    float(part)
    except ValueError:
        return f", line {number} holds {part.decode(errors='replace')!r} where a number is expected"
    except (EOFError, OSError):
        return ", which cannot be read to its end"
    return ""
