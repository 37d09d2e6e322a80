"""Word vectors: opened from every form without a copy, cached safely, and trained to bitwise equal results."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from multicse.data import word_vectors
from multicse.data.errors import DataError
from multicse.data.word_vectors import is_word_vectors, open_vectors, train_vectors, write_vectors
from tests.conftest import ROOT

WORDS = ["dog", "cat", "na\xa0ive", "", "\x85", "日本", "x\r"]
TABLE = np.random.default_rng(0).standard_normal((len(WORDS), 4)).astype(np.float32)
ROWS = [*zip(WORDS, TABLE, strict=True)]
BODIES = {
    ".bin": b"".join(word.encode() + b" " + row.tobytes() for word, row in ROWS),
    ".vec": "".join(f"{word} {' '.join(map(repr, row.tolist()))}\n" for word, row in ROWS).encode(),
}
"""word2vec's two formats byte by byte, after their first line."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache, which is also used for small files."""
    monkeypatch.setenv("MULTICSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(word_vectors, "CACHE_FROM", 0)
    return tmp_path / "cache"


def write(path: Path, head: bytes = b"7 4") -> Path:
    """Write all words in the format that the name says, after this first line; or as a folder."""
    if not path.suffix:
        return write_vectors(path, WORDS, TABLE.astype(np.float64), {"from": "a test"})
    content = head + b"\n" + BODIES[".bin" if ".bin" in path.name else ".vec"]
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def mapped_file(array: np.ndarray) -> bool:
    while array.base is not None and isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array, np.memmap)


FILES = ["v.bin", "v.bin.gz", "v.vec", "v.vec.gz"]


@pytest.mark.parametrize("name", [*FILES, "v"])
def test_every_form_is_the_same_mapped_vectors(tmp_path: Path, cache: Path, name: str) -> None:
    path = write(tmp_path / name)
    for _ in range(2):  # then from the cache
        got = open_vectors(path)
        assert (got.words, got.path, got.row) == (WORDS, path, {word: i for i, word in enumerate(WORDS)})
        np.testing.assert_array_equal(got.vectors, TABLE)  # also what the first process has written stays in it
        assert type(got.vectors) is np.ndarray and mapped_file(got.vectors) and is_word_vectors(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.from_numpy(got.vectors)[0] = 7
    assert cache.exists() == bool(path.suffix)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("\ufeff2 2\r\ndog 1 2 \r\ncat 3 4\r\n", ["dog", "cat"]),
        ("dog\t1\t2\ncat\t3\t4", ["dog", "cat"]),
        ("\ufeffdog\t1 2\ncat 3 4\n", ["dog", "cat"]),
        ("2 2\ndog  1 2\ncat\t 3 4\n", ["dog", "cat"]),
        ("dog 1 2\n. . . 3 4\n", ["dog", ". . ."]),  # in GloVe's 840B
    ],
)
def test_vectors_as_other_programs_write_them(tmp_path: Path, content: str, words: list[str]) -> None:
    """A byte order mark, line ends of Windows, blanks at the end of a line, tabs, and words with blanks but no number."""
    (tmp_path / "v.txt").write_bytes(content.encode())
    got = open_vectors(tmp_path / "v.txt")
    assert got.words == words and got.vectors.tolist() == [[1, 2], [3, 4]]


HEADS = [b"1000000000000 4", b"7 99999999999", b"9" * 5000 + b" 4", b"8 4", b"6 4"]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head[:20].decode())
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_does_not_contain_the_announced_words(tmp_path: Path, name: str, head: bytes) -> None:
    """It is refused before memory is allocated, and additional words are not dropped silently."""
    with pytest.raises(DataError, match=name):
        open_vectors(write(tmp_path / name, head))


def test_a_file_is_read_when_it_or_its_cache_has_changed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, path = Mock(wraps=word_vectors._read), write(tmp_path / "v.bin")
    monkeypatch.setattr(word_vectors, "_read", read)

    def cut(name: str) -> None:
        for file in cache.rglob(name):
            os.truncate(file, file.stat().st_size // 2)

    steps: list[tuple[Callable[[], object], int, list[str]]] = [
        (lambda: None, 1, WORDS),
        (lambda: None, 0, WORDS),
        (lambda: cut("vectors.npy"), 1, WORDS),
        (lambda: cut("words.txt"), 1, WORDS),
        (lambda: path.write_bytes(b"1 4\ndog " + TABLE[1].tobytes()), 1, ["dog"]),
        (lambda: os.utime(path, ns=(1, 1)), 1, ["dog"]),
        (lambda: monkeypatch.setenv("MULTICSE_CACHE", str(path)), 1, ["dog"]),  # a cache that cannot be written
    ]
    for number, (act, times, words) in enumerate(steps):
        act()
        read.reset_mock()
        assert open_vectors(path).words == words and read.call_count == times, f"step {number}"
        assert not [entry for entry in cache.rglob(".*")], "something half made is left"
        assert ("set MULTICSE_CACHE" in caplog.text) == (number == len(steps) - 1)
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"v\.bin"):
        open_vectors(path)


# ---------------------------------------------------------------------------------------------------------------- folders


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    folder = write(tmp_path / "a" / "v")
    assert json.loads((folder / "vectors.json").read_text()) == {"from": "a test"}
    first = open_vectors(folder).hash
    write_vectors(folder, [*WORDS[:-1], "other"], TABLE)
    assert open_vectors(folder).hash != first
    assert sorted(entry.name for entry in folder.iterdir()) == ["vectors.npy", "words.txt"]
    assert [entry.name for entry in folder.parent.iterdir()] == ["v"]
    twice = open_vectors(write_vectors(folder, ["a", "b", "a", "c\n"], TABLE[:4]))
    assert twice.words == ["a", "b"] and (twice.vectors == TABLE[:2]).all(), "the first of equal words, and one line each"


PICKLED = np.array([{"a": 1}] * 7)
DAMAGE: dict[str, Callable[[Path], object]] = {
    "2 words": lambda folder: (folder / "words.txt").write_text("one\ntwo\n"),
    "v: .* cannot be read": lambda folder: np.save(folder / "vectors.npy", PICKLED, allow_pickle=True),
    r"int64 \(7,\)": lambda folder: np.save(folder / "vectors.npy", np.arange(7)),
    r"v: its files vectors\.npy and .* cannot be read": lambda folder: (folder / "vectors.npy").unlink(),
}


@pytest.mark.parametrize("named", DAMAGE)
def test_folders_that_cannot_be_used(tmp_path: Path, named: str) -> None:
    DAMAGE[named](folder := write(tmp_path / "v"))
    with pytest.raises(DataError, match=named):
        open_vectors(folder)


def test_what_is_not_written(tmp_path: Path) -> None:
    nan = np.where(np.arange(7)[:, None] == 1, np.nan, TABLE)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    for name, words, table, named in (
        ("v", ["a", "b"], TABLE, "2 words"),
        ("v", WORDS, nan, "'cat'"),
        ("mine", WORDS, TABLE, r"thesis\.txt"),
    ):
        with pytest.raises(DataError, match=named):
            write_vectors(tmp_path / name, words, table)
    assert (tmp_path / "mine" / "thesis.txt").exists() and not (tmp_path / "v").exists()


# --------------------------------------------------------------------------------------------------------------- training


def write_trained(folder: str, seed: int) -> None:
    """Train on sentences about animals or about tools: words of one kind occur together."""
    rng = np.random.default_rng(0)
    kinds = ["Dog cat mouse horse cow sheep", "hammer saw drill wrench nail screw"]
    corpus = [" ".join(rng.choice(kinds[i % 2].split(), 5)) for i in range(300)]
    train_vectors(corpus, folder, split=lambda text: text.lower().split(), seed=seed, dim=8, epochs=2)


def test_equal_seeds_give_bitwise_equal_vectors_in_every_process(tmp_path: Path) -> None:
    code = "import sys; from tests.data.test_vector_files import write_trained; write_trained(sys.argv[1], 1)"
    write_trained(str(tmp_path / "b"), 1)
    write_trained(str(tmp_path / "c"), 2)
    command = [sys.executable, "-c", code, str(tmp_path / "a")]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "12345"}, check=True)
    a, b, c = (open_vectors(tmp_path / name) for name in "abc")
    assert a.words == b.words == c.words
    assert a.hash == b.hash
    assert (a.vectors != c.vectors).any()
