"""Word vectors, read from a word2vec or GloVe file or trained with gensim on your own sentences.

They are memory-mapped from a folder, which all processes of a machine share: ``vectors.npy``, float32 (V, d), and
``words.txt``, V words in UTF-8, one per line. A file is converted to such a folder in the cache when it is first read.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import json
import logging
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from multicse.data import limits
from multicse.data.errors import DataError
from multicse.data.text_files import UTF16, decoded

logger = logging.getLogger(__name__)

TEXT, BINARY = (".txt", ".vec"), (".bin",)
SUFFIXES = (*TEXT, *BINARY)  # each optionally followed by .gz
PICKLED = (".kv", ".model", ".pkl", ".pickle")
VECTORS, WORDS, NOTE = "vectors.npy", "words.txt", "vectors.json"
FASTTEXT = b"\xba\x16\x4f\x2f"  # first bytes of fastText's .bin
BINARY_HEADER = 42  # bytes: two numbers of twenty digits, a blank and a line feed
CACHE_FROM = 2**20  # bytes; reading smaller files is as fast as reading a cache


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors of words, mapped copy-on-write if they are from a folder; row i is the vector of `words[i]`."""

    words: list[str]
    """V words."""
    vectors: np.ndarray
    """Their vectors, float32 (V, d)."""
    path: Path
    """File or folder from which they were opened."""

    @cached_property
    def row(self) -> dict[str, int]:
        """Row of each word; the first row if a word occurs twice."""
        return {word: i for i, word in zip(range(len(self.words) - 1, -1, -1), reversed(self.words), strict=True)}

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the file, or of the words and vectors of the folder."""
        files = [self.path / WORDS, self.path / VECTORS] if self.path.is_dir() else [self.path]
        digest = hashlib.sha256()
        for name in files:
            with name.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
        return digest.hexdigest()


def is_word_vectors(path: Path) -> bool:
    """Return True for a folder of word vectors, and for the extension of a word-vector file, even of a refused one."""
    if path.is_dir():
        return (path / VECTORS).is_file() and (path / WORDS).is_file()
    return _kind(path) in (*SUFFIXES, *PICKLED) or path.suffix == ".gz"


def open_vectors(path: str | Path) -> Vectors:
    """Open the vectors of a word2vec or GloVe file, or of a folder from `write_vectors` or `train_vectors`.

    A file is text (.txt, .vec, with or without a header line) or word2vec's binary format (.bin), optionally with .gz. It is
    read once and then memory-mapped from the cache until its size or date changes. If the cache cannot be written, a
    warning is logged and the vectors are kept in memory.

    Raises:
        DataError: If a file does not exist, is damaged or pickled (the message contains the line, if it is known), or if
            the two files of a folder do not exist or do not match.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return _open_folder(path, path)
    _check(path)
    if path.stat().st_size < CACHE_FROM:
        return Vectors(*_read(path), path)
    place, stat = path.resolve(), path.stat()
    stamp = f"2 {place} {stat.st_size} {stat.st_mtime_ns}"  # 2: how files are read, and the form of the folder
    folder = limits.cache_path("word_vectors", stamp)

    def write(new: Path) -> None:
        write_vectors(new, *_read(path), {"file": str(place)})

    try:
        return limits.cached(folder, write, lambda made: _open_folder(made, path))
    except limits.CacheError as error:
        logger.warning("every process keeps the word vectors of %s in memory: %s", path, error)
        return Vectors(*_read(path), path)


def write_vectors(folder: str | Path, words: Sequence[str], vectors: np.ndarray, note: dict[str, Any] | None = None) -> Path:
    """Write a folder of word vectors that `open_vectors` opens. It replaces an older folder of word vectors atomically.

    Args:
        folder: Folder that is written.
        words: V words. Repeated words, and words that contain a line feed, are left out.
        vectors: Their vectors, (V, d).
        note: Content of the file vectors.json. If None, the file is not written.

    Raises:
        DataError: If the numbers of words and vectors differ or are 0, a vector contains NaN or infinity, or the folder
            contains other files.
    """
    folder = Path(folder).expanduser()
    table = np.asarray(vectors, dtype=np.float32)
    if table.ndim != 2 or not table.size or len(words) != len(table):
        raise DataError(f"{folder}: {len(words)} words with vectors of shape {table.shape}; it must be (words, dimensions)")
    _refuse_non_finite(folder, words, table)
    words, table = _tidy(words, table)
    others = {entry.name for entry in folder.iterdir()} - {VECTORS, WORDS, NOTE} if folder.is_dir() else set()
    if others or folder.is_file():
        raise DataError(f"{folder} contains {min(others, default='a file')!r}; choose a separate folder for word vectors")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        new, old = Path(scratch, "new"), Path(scratch, "old")
        new.mkdir()
        np.save(new / VECTORS, table, allow_pickle=False)
        (new / WORDS).write_bytes("".join(f"{word}\n" for word in words).encode())
        if note is not None:
            (new / NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    return folder


# --------------------------------------------------------------------------------------------------------------- training


def train_vectors(
    sentences: Iterable[str],
    folder: str | Path,
    *,
    split: Callable[[str], list[str]],
    seed: int,
    dim: int = 300,
    letters: str = "a-z",
    epochs: int = 20,
) -> Path:
    """Train skip-gram vectors of a corpus (word2vec in gensim, with 5 negatives) and write them to a folder.

    On one machine, equal sentences, settings and seeds give bitwise equal vectors: training uses one thread and does not
    depend on Python's hashes. The settings are for some thousands of sentences: more epochs, a wider window and stronger
    subsampling of frequent words than word2vec's defaults; words that occur once get no vector.

    Args:
        sentences: Texts, which are read once.
        folder: Folder that is written, with the settings in vectors.json.
        split: Function from a text to its cleaned words.
        seed: Seed of the initial vectors and of all draws.
        dim: Length of a vector, d.
        letters: Setting of `split`, for vectors.json.
        epochs: Number of epochs.
    """
    import gensim
    from gensim.models import Word2Vec
    from gensim.models.word2vec import LineSentence

    settings: dict[str, Any] = {"epochs": epochs, "min_count": 2, "window": 10, "negative": 5, "sample": 1e-4}
    model = Word2Vec(vector_size=dim, sg=1, seed=seed % 2**32, workers=1, **settings)
    with tempfile.TemporaryDirectory() as place:
        # Every epoch reads the split words from a file: reading and splitting the sentences may be slow.
        file, count, words = Path(place) / "words.txt", 0, 0
        with file.open("w", encoding="utf-8") as lines:
            for found in map(split, sentences):
                if found:
                    count, words = count + 1, words + len(found)
                    lines.write(" ".join(found) + "\n")
        if not count:
            raise DataError("word vectors: the training sentences contain no words; set `vectors`, or use other sentences")
        corpus = LineSentence(str(file), max_sentence_length=sys.maxsize)
        model.build_vocab(corpus)
        if not len(model.wv):
            raise DataError(
                f"word vectors: no word occurs {model.min_count} times in {count:,} sentences ({words:,} words); use more "
                "sentences"
            )
        sizes = {"sentences": count, "words": words, "vocabulary": len(model.wv)}
        model.train(corpus, total_examples=model.corpus_count, epochs=epochs)
    note = {"made_by": f"word2vec skip-gram (gensim {gensim.__version__})", "letters": letters, "dim": dim, **settings}
    note |= {"seed": seed, **sizes}
    return write_vectors(folder, model.wv.index_to_key, model.wv.vectors, note)


# ---------------------------------------------------------------------------------------------------------------- folders


def _open_folder(folder: Path, path: Path) -> Vectors:
    """Map the vectors of a folder; `path` is the path that the user specified."""
    try:
        mapped = np.load(folder / VECTORS, mmap_mode="c", allow_pickle=False)
        text = (folder / WORDS).read_bytes().decode()
    except Exception as error:  # numpy reads a damaged header with Python's tokenizer
        raise DataError(f"{folder}: its files {VECTORS} and {WORDS} cannot be read: {error}") from error
    if mapped.ndim != 2 or not mapped.size or mapped.dtype.kind != "f":
        raise DataError(f"{folder / VECTORS} contains {mapped.dtype} {mapped.shape}; it must be floats (words, dimensions)")
    # Only a line feed ends a word: words may contain other characters that Python treats as line ends.
    words = text.removesuffix("\n").split("\n")
    if len(words) != len(mapped):
        raise DataError(f"{folder}: {len(words)} words in {WORDS}, but {len(mapped)} vectors in {VECTORS}")
    return Vectors(words, np.asarray(mapped, dtype=np.float32), path)


# ------------------------------------------------------------------------------------------------------------------ files


def _kind(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def _check(path: Path) -> None:
    if _kind(path) in PICKLED:
        raise DataError(
            f"{path} contains pickled objects, which can run any code when they are loaded. If you trust it, convert it: "
            f"gensim.models.KeyedVectors.load({str(path)!r}).save_word2vec_format('vectors.bin', binary=True)"
        )
    if not path.is_file():
        raise DataError(f"word-vector file {path} not found")
    if _kind(path) not in SUFFIXES:
        raise DataError(
            f"{path} is not a word-vector file, which has the extension {', '.join(SUFFIXES)}, optionally with .gz"
        )


def _read(path: Path) -> tuple[list[str], np.ndarray]:
    """Return words and their vectors, float32 (V, d)."""
    try:
        words, vectors = (_read_binary if _kind(path) in BINARY else _read_text)(path)
    except DataError:
        raise
    except (ValueError, EOFError, OSError, zlib.error, MemoryError) as error:
        raise DataError(f"{path} is not a word-vector file, or is damaged: {error}") from error
    if not vectors.size:
        raise DataError(f"{path} contains no word vectors")
    _refuse_non_finite(path, words, vectors)
    return _tidy(words, vectors)


def _read_text(path: Path) -> tuple[list[str], np.ndarray]:
    """Read lines of a word and its numbers; in word2vec's files, the first line has the numbers of words and dimensions."""
    lines = sum(1 for _ in _lines(path))
    announced, vectors = lines, np.empty((0, 0), np.float32)
    words: list[str] = []
    for number, line in enumerate(_lines(path), 1):
        word, *parts = line.rstrip().replace(b"\t", b" ").split(b" ")
        numbers = [part for part in parts if part]
        if number == 1:
            word = word.removeprefix(codecs.BOM_UTF8)
            header = word.isdigit() and len(numbers) == 1 and numbers[0].isdigit()
            vectors = np.empty((lines - header, int(numbers[0]) if header else len(numbers)), np.float32)
            if header:
                announced = int(word) + 1
                continue
        more = len(numbers) - vectors.shape[1]
        if more < 0 or any(map(_is_number, numbers[:more])):
            raise DataError(f"{path}, line {number} has {len(numbers)} numbers after the word, expected {vectors.shape[1]}")
        try:
            vectors[len(words)] = numbers[more:]
            words.append(b" ".join([word, *numbers[:more]]).decode())  # GloVe 840B has words with blanks: ". . ."
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
    if announced != lines:
        raise DataError(f"{path} has {lines:,} lines, but the first announces {announced - 1:,} words; correct or remove it")
    return words, vectors


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_binary(path: Path) -> tuple[list[str], np.ndarray]:
    """Read word2vec's binary format: a line with the numbers of words and dimensions, then words, each with its floats."""
    with _open(path) as file:
        first = file.readline(BINARY_HEADER).split()
        if b"".join(first).startswith(FASTTEXT):
            raise DataError(f"{path} is a model of fastText, not word vectors; use its .vec instead")
        if len(first) != 2 or not all(part.isdigit() for part in first):
            raise DataError(
                f"{path} does not start with the numbers of words and dimensions, so it is not word2vec's format"
            )
        vectors = np.empty(tuple(map(int, first)), np.float32)  # memory is allocated as rows are written
        words: list[str] = []
        for row in vectors:
            word = bytearray()
            while (letter := file.read(1)) != b" ":
                word += letter
                if not letter or len(word) > limits.NAME:
                    raise DataError(
                        f"{path} ends, or is damaged, after {len(words):,} of the {len(vectors):,} words it announces"
                    )
            row[:] = np.frombuffer(file.read(row.nbytes), "<f4", len(row))
            words.append(word.lstrip(b"\n").decode())  # some writers end every row with a line feed
        if file.read(2).strip(b"\n"):
            raise DataError(f"{path} has more bytes than the {len(words):,} words that it announces; download it again")
    return words, vectors


def _refuse_non_finite(path: Path, words: Sequence[str], vectors: np.ndarray) -> None:
    # A sum is not finite if one of its terms is not, and it needs no second array of the same size.
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~np.isfinite(vectors.sum(axis=1, dtype=np.float64)))
    if len(bad):
        raise DataError(f"{path}: the vector of {words[bad[0]]!r} contains NaN or infinity")


def _tidy(words: Sequence[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Leave out words that occurred before, and words that contain a line feed."""
    first = dict(zip(reversed(words), range(len(words) - 1, -1, -1), strict=True))
    keep = sorted(row for word, row in first.items() if "\n" not in word)
    if len(keep) == len(words):
        return list(words), vectors
    logger.warning("%d words are left out: they are repeated or contain a line feed", len(words) - len(keep))
    return [words[row] for row in keep], vectors[keep]


def _open(path: Path) -> io.BufferedReader:
    return io.BufferedReader(gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a text file; raise DataError if one is too long for a word and its vector."""
    with _open(path) as opened:
        file = io.BytesIO(decoded(opened.read(), path).encode()) if opened.peek(2).startswith(UTF16) else opened
        for number, line in enumerate(iter(partial(file.readline, limits.LINE + 1), b""), 1):
            if len(line) > limits.LINE:
                raise DataError(f"{path}, line {number} has {limits.over('LINE', 'more bytes', limits.LINE)}")
            yield line
