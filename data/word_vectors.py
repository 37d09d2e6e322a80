"""Word vectors: read from any word2vec or GloVe file, memory-mapped; or trained with gensim on sentences of one's own.

However they come, they are opened from a folder of two files, which all processes of a machine share page by page:

``vectors.npy``   (V, d) float32
``words.txt``     V words in the order of the rows, UTF-8, each ended by a line feed

A file is read once; the folder made of it lies in a cache (`limits.cache_path`), and later reads take it from there.
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

logger = logging.getLogger(__name__)

TEXT, BINARY = (".txt", ".vec"), (".bin",)
SUFFIXES = (*TEXT, *BINARY)  # each also with .gz after it
PICKLED = (".kv", ".model", ".pkl", ".pickle")
VECTORS, WORDS, NOTE = "vectors.npy", "words.txt", "vectors.json"
FASTTEXT = b"\xba\x16\x4f\x2f"  # how its own .bin begins
BINARY_HEADER = 42  # bytes: two numbers of twenty digits, a blank and a line feed
CACHE_FROM = 2**20  # bytes; smaller files are read as fast as a cache would be


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors (V, d) float32 of V words; row i is that of `words[i]`.

    The array is mapped copy-on-write where it comes from a folder: writing to it changes neither the file nor what other
    processes see.
    """

    words: list[str]
    vectors: np.ndarray
    path: Path
    """The file or folder they were asked from."""

    @cached_property
    def row(self) -> dict[str, int]:
        """Row by word; of words that are there twice, the first."""
        return {word: i for i, word in zip(range(len(self.words) - 1, -1, -1), reversed(self.words), strict=True)}

    @cached_property
    def hash(self) -> str:
        """sha256 of the file; of a folder, of its words and its vectors."""
        files = [self.path / WORDS, self.path / VECTORS] if self.path.is_dir() else [self.path]
        digest = hashlib.sha256()
        for name in files:
            with name.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
        return digest.hexdigest()


def is_word_vectors(path: Path) -> bool:
    """Whether this is a folder of word vectors, or the name of a file of them (or of one refused with a way out)."""
    if path.is_dir():
        return (path / VECTORS).is_file() and (path / WORDS).is_file()
    return _kind(path) in (*SUFFIXES, *PICKLED) or path.suffix == ".gz"


def open_vectors(path: str | Path) -> Vectors:
    """The vectors of a word2vec or GloVe file, or of a folder that `write_vectors` or `train_vectors` made.

    Text (.txt, .vec, with or without the header line) or word2vec's binary form (.bin), each also with .gz. A file is read
    once and then memory-mapped from the cache, until its size or date changes; one below 1 MiB is simply read.
    If the cache cannot be written, there is a warning and the vectors are held in memory.

    Raises DataError for a missing, broken or pickled file, naming the line where that can be found, and for a folder
    without its two files or with files that do not fit together.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return _open_folder(path, path)
    _check(path)
    if path.stat().st_size < CACHE_FROM:
        return Vectors(*_read(path), path)
    place, stat = path.resolve(), path.stat()
    stamp = f"1 {place} {stat.st_size} {stat.st_mtime_ns}"  # 1: the form of the folder
    folder = limits.cache_path("word_vectors", stamp)

    def write(new: Path) -> None:
        write_vectors(new, *_read(path), {"file": str(place)})

    try:
        return limits.cached(folder, write, lambda made: _open_folder(made, path))
    except limits.CacheError as error:
        logger.warning("every process holds the word vectors of %s in memory: %s", path, error)
        return Vectors(*_read(path), path)


def write_vectors(folder: str | Path, words: Sequence[str], vectors: np.ndarray, note: dict[str, Any] | None = None) -> Path:
    """Make a folder of word vectors (V, d) that `open_vectors` opens; `note` goes to its vectors.json. Returns the folder.

    Of words that are there twice the first is kept; words that hold a line feed are left out. The folder appears whole, and
    takes the place of an older folder of word vectors.

    Raises DataError for another number of words than of vectors, none at all, NaN or infinity, and a folder that holds
    something else.
    """
    folder = Path(folder).expanduser()
    table = np.asarray(vectors, dtype=np.float32)
    if table.ndim != 2 or not table.size or len(words) != len(table):
        raise DataError(f"{folder}: {len(words)} words with vectors of shape {table.shape}; (words, dimensions) is needed")
    _refuse_non_finite(folder, words, table)
    words, table = _tidy(words, table)
    others = {entry.name for entry in folder.iterdir()} - {VECTORS, WORDS, NOTE} if folder.is_dir() else set()
    if others or folder.is_file():
        raise DataError(
            f"{folder} holds {min(others, default='a file')!r}; word vectors are written to a folder of their own"
        )
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
    min_count: int = 2,
    window: int = 10,
    sample: float = 1e-4,
) -> Path:
    """word2vec's skip-gram vectors of a corpus (gensim; 5 negatives), written as a folder; returns the folder.

    The same sentences, settings and seed give the same vectors bit for bit on the same machine: there is one thread, and
    nothing depends on Python's hashes. The defaults are for some thousands of sentences: more passes, a wider window and
    rarer frequent words than word2vec's own.

    Args:
        sentences: the texts, which are read once.
        folder: where the vectors go, and vectors.json, which says how they were made.
        split: the words of a text, cleaned.
        seed: of the first vectors and of all draws.
        dim: d, numbers of a vector.
        letters: how `split` cleans, for vectors.json.
        epochs: passes over the sentences.
        min_count: words that occur less often get no vector.
        window: how many words to each side are predicted, at most.
        sample: words that are a larger share of the text than this are passed over more often the more frequent they are.

    Raises DataError when there is no sentence with a word, or no word occurs `min_count` times.
    """
    import gensim
    from gensim.models import Word2Vec
    from gensim.models.word2vec import LineSentence

    model = Word2Vec(vector_size=dim, sg=1, window=window, min_count=min_count, sample=sample, seed=seed % 2**32, workers=1)
    with tempfile.TemporaryDirectory() as place:
        # Every pass reads the split words from a file: sentences may come from far away, and need not be split twenty times.
        file, count, words = Path(place) / "words.txt", 0, 0
        with file.open("w", encoding="utf-8") as lines:
            for found in map(split, sentences):
                if found:
                    count, words = count + 1, words + len(found)
                    lines.write(" ".join(found) + "\n")
        if not count:
            raise DataError("word vectors: there is no sentence with a word to train on; give `vectors`, or sentences")
        corpus = LineSentence(str(file), max_sentence_length=sys.maxsize)
        model.build_vocab(corpus)
        if not len(model.wv):
            raise DataError(
                f"word vectors: no word occurs {min_count} times in {count:,} sentences ({words:,} words); give more "
                "sentences or a smaller min_count"
            )
        sizes = {"sentences": count, "words": words, "vocabulary": len(model.wv)}
        model.train(corpus, total_examples=model.corpus_count, epochs=epochs)
    settings = {"dim": dim, "epochs": epochs, "min_count": min_count, "window": window}
    note = {"made_by": f"word2vec skip-gram (gensim {gensim.__version__})", "letters": letters, **settings}
    note |= {"negative": int(model.negative), "sample": sample, "seed": seed, **sizes}
    return write_vectors(folder, model.wv.index_to_key, model.wv.vectors, note)


# ---------------------------------------------------------------------------------------------------------------- folders


def _open_folder(folder: Path, path: Path) -> Vectors:
    """The vectors of a folder, mapped; `path` is what the user asked for."""
    try:
        mapped = np.load(folder / VECTORS, mmap_mode="c", allow_pickle=False)
        text = (folder / WORDS).read_bytes().decode()
    except Exception as error:  # numpy reads a damaged header with Python's tokenizer
        raise DataError(f"{folder}: {VECTORS} and {WORDS}, which it should hold, cannot be read: {error}") from error
    if mapped.ndim != 2 or not mapped.size or mapped.dtype.kind != "f":
        raise DataError(f"{folder / VECTORS} holds {mapped.dtype} {mapped.shape}; floats (words, dimensions) are needed")
    # Only a line feed ends a word: words may hold what Python also takes for line ends.
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
            f"{path} holds pickled objects, which can run any code when they are loaded. If you trust it, convert it once: "
            f"gensim.models.KeyedVectors.load({str(path)!r}).save_word2vec_format('vectors.bin', binary=True)"
        )
    if not path.is_file():
        raise DataError(f"no word-vector file {path}")
    if _kind(path) not in SUFFIXES:
        raise DataError(f"{path} is no word-vector file; they end in {', '.join(SUFFIXES)}, or in one of these and .gz")


def _read(path: Path) -> tuple[list[str], np.ndarray]:
    """Words, and their vectors (V, d) float32."""
    try:
        words, vectors = (_read_binary if _kind(path) in BINARY else _read_text)(path)
    except DataError:
        raise
    except (ValueError, EOFError, OSError, zlib.error, MemoryError) as error:
        raise DataError(f"{path} is no word-vector file, or damaged: {error}") from error
    if not vectors.size:
        raise DataError(f"{path} holds no word vector")
    _refuse_non_finite(path, words, vectors)
    return _tidy(words, vectors)


def _read_text(path: Path) -> tuple[list[str], np.ndarray]:
    """A word and its numbers a line; word2vec's first line says how many lines and numbers there are, GloVe has none."""
    lines = sum(1 for _ in _lines(path))
    announced, vectors = lines, np.empty((0, 0), np.float32)
    words: list[str] = []
    for number, line in enumerate(_lines(path), 1):
        word, *numbers = line.rstrip().replace(b"\t", b" ").split(b" ")
        if number == 1:
            word = word.removeprefix(codecs.BOM_UTF8)
            header = word.isdigit() and len(numbers) == 1 and numbers[0].isdigit()
            vectors = np.empty((lines - header, int(numbers[0]) if header else len(numbers)), np.float32)
            if header:
                announced = int(word) + 1
                continue
        more = len(numbers) - vectors.shape[1]
        if more < 0 or any(map(_is_number, numbers[:more])):
            raise DataError(
                f"{path}, line {number} has {len(numbers)} numbers after the word; {vectors.shape[1]} are expected"
            )
        try:
            vectors[len(words)] = numbers[more:]
            words.append(b" ".join([word, *numbers[:more]]).decode())  # GloVe 840B has words with blanks: ". . ."
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
    if announced != lines:
        raise DataError(f"{path} has {lines:,} lines, and its first announces {announced - 1:,} words; correct or remove it")
    return words, vectors


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_binary(path: Path) -> tuple[list[str], np.ndarray]:
    """word2vec's form: a line with the numbers of words and dimensions; then words, each with a blank and floats."""
    with _open(path) as file:
        first = file.readline(BINARY_HEADER).split()
        if b"".join(first).startswith(FASTTEXT):
            raise DataError(f"{path} is a model of fastText, not word vectors; give its .vec instead")
        if len(first) != 2 or not all(part.isdigit() for part in first):
            raise DataError(f"{path} does not begin with the numbers of its words and dimensions, as word2vec's form does")
        vectors = np.empty(tuple(map(int, first)), np.float32)  # memory is taken as rows are written
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
            raise DataError(f"{path} has more bytes than the {len(words):,} words take that it announces; fetch it again")
    return words, vectors


def _refuse_non_finite(path: Path, words: Sequence[str], vectors: np.ndarray) -> None:
    # A sum over the dimensions is not finite if a number is not; it needs no second array of the size of the first.
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~np.isfinite(vectors.sum(axis=1, dtype=np.float64)))
    if len(bad):
        raise DataError(f"{path}: the vector of {words[bad[0]]!r} holds NaN or infinity")


def _tidy(words: Sequence[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The same without words that occurred before, and without words that a line of words.txt cannot hold."""
    first = dict(zip(reversed(words), range(len(words) - 1, -1, -1), strict=True))
    keep = sorted(row for word, row in first.items() if "\n" not in word)
    if len(keep) == len(words):
        return list(words), vectors
    logger.warning("%d words are left out: they are there twice or hold a line feed", len(words) - len(keep))
    return [words[row] for row in keep], vectors[keep]


def _open(path: Path) -> io.BufferedReader:
    return io.BufferedReader(gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _lines(path: Path) -> Iterator[bytes]:
    """Lines of a text file; DataError for one too long to be a word and its vector."""
    with _open(path) as file:
        for number, line in enumerate(iter(partial(file.readline, limits.LINE + 1), b""), 1):
            if len(line) > limits.LINE:
                raise DataError(f"{path}, line {number} has {limits.over('LINE', 'more bytes', limits.LINE)}")
            yield line
