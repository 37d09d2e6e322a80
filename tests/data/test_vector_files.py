"""Word vectors: opened from every format without a copy, cached safely, and trained to bitwise equal results."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from multicse.data import word_vectors
from multicse.data.errors import DataError
from multicse.data.word_vectors import is_word_vectors, open_vectors, train_vectors, write_vectors
from tests.conftest import ROOT

WORDS = ["dog", "cat", "na\xa0ive", "", "\x85", "日本", "x\r"]
TABLE = np.random.default_rng(0).standard_normal((len(WORDS), 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache, which is also used for small files."""
    monkeypatch.setenv("MULTICSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(word_vectors, "CACHE_FROM", 0)
    return tmp_path / "cache"


def binary(path: Path, words: list[str] = WORDS, table: np.ndarray = TABLE) -> Path:
    """Write word2vec's binary format byte by byte."""
    rows = b"".join(word.encode() + b" " + row.tobytes() for word, row in zip(words, table, strict=True))
    body = f"{len(words)} {table.shape[1]}\n".encode() + rows
    path.write_bytes(gzip.compress(body) if path.suffix == ".gz" else body)
    return path


def mapped_file(array: np.ndarray) -> bool:
    while array.base is not None and isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array, np.memmap)


@pytest.mark.parametrize("name", ["v.bin", "v.bin.gz"])
def test_a_file_is_mapped_from_the_cache(tmp_path: Path, name: str) -> None:
    path = binary(tmp_path / name)
    for _ in range(2):
        got = open_vectors(path)
        assert got.words == WORDS
        assert got.path == path
        np.testing.assert_array_equal(got.vectors, TABLE)
        assert type(got.vectors) is np.ndarray
        assert mapped_file(got.vectors)
    assert got.row == {word: i for i, word in enumerate(WORDS)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.from_numpy(got.vectors)[0] = 7
    np.testing.assert_array_equal(open_vectors(path).vectors, TABLE)  # what is written stays in the process


def test_a_file_is_read_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    read = word_vectors._read

    def counted(path: Path) -> tuple[list[str], np.ndarray]:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(word_vectors, "_read", counted)
    path = binary(tmp_path / "v.bin")
    for _ in range(3):
        open_vectors(path)
    assert len(reads) == 1
    binary(path, ["dog"], TABLE[1:2])
    assert open_vectors(path).words == ["dog"]  # another file now
    os.utime(path, ns=(1, 1))
    open_vectors(path)
    assert len(reads) == 3
    assert not [entry for entry in cache.rglob(".*")]  # nothing half made is left


@pytest.mark.parametrize("name", ["vectors.npy", "words.txt"])
def test_a_cut_cache_is_made_again(tmp_path: Path, cache: Path, name: str) -> None:
    path = binary(tmp_path / "v.bin")
    for _ in range(2):
        np.testing.assert_array_equal(open_vectors(path).vectors, TABLE)
        (file,) = cache.rglob(name)
        os.truncate(file, file.stat().st_size // 2)
    np.testing.assert_array_equal(open_vectors(path).vectors, TABLE)


def test_a_cache_that_cannot_be_written(tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.write_text("no folder")
    assert open_vectors(binary(tmp_path / "v.bin")).words == WORDS
    assert "set MULTICSE_CACHE" in caplog.text
    (tmp_path / "v.bin").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"v\.bin"):
        open_vectors(tmp_path / "v.bin")


def test_folders(tmp_path: Path, cache: Path) -> None:
    folder = write_vectors(tmp_path / "a" / "v", WORDS, TABLE.astype(np.float64), {"from": "a test"})
    got = open_vectors(folder)
    assert (got.words, got.path) == (WORDS, folder) and is_word_vectors(folder)
    np.testing.assert_array_equal(got.vectors, TABLE)
    assert mapped_file(got.vectors) and not cache.exists()
    assert json.loads((folder / "vectors.json").read_text()) == {"from": "a test"}
    first = got.hash
    write_vectors(folder, [*WORDS[:-1], "other"], TABLE)  # takes its place
    assert open_vectors(folder).hash != first
    assert sorted(entry.name for entry in folder.iterdir()) == ["vectors.npy", "words.txt"]
    assert [entry.name for entry in folder.parent.iterdir()] == ["v"]
    twice = open_vectors(write_vectors(folder, ["a", "b", "a", "c\n"], TABLE[:4]))
    assert twice.words == ["a", "b"] and (twice.vectors == TABLE[:2]).all(), "the first of equal words, and one line each"


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    folder = write_vectors(tmp_path / "v", WORDS, TABLE)
    (folder / "words.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match="2 words"):
        open_vectors(folder)
    for pickled, table in ((True, np.array([{"a": 1}], dtype=object)), (False, np.arange(2))):
        np.save(folder / "vectors.npy", table, allow_pickle=pickled)
        with pytest.raises(DataError, match="v"):
            open_vectors(folder)
    (folder / "vectors.npy").unlink()
    with pytest.raises(DataError, match=r"v: its files vectors\.npy and .* cannot be read"):
        open_vectors(folder)


def test_what_is_not_written(tmp_path: Path) -> None:
    nan = np.where(np.arange(7)[:, None] == 1, np.nan, TABLE)
    for words, table, named in ((["a", "b"], TABLE, "2 words"), (WORDS, nan, "'cat'")):
        with pytest.raises(DataError, match=named):
            write_vectors(tmp_path / "v", words, table)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(DataError, match=r"thesis\.txt"):
        write_vectors(tmp_path / "mine", WORDS, TABLE)
    assert (tmp_path / "mine" / "thesis.txt").exists() and not (tmp_path / "v").exists()


def test_a_word_may_contain_blanks_but_no_number(tmp_path: Path) -> None:
    """GloVe's 840B has words such as ". . ."."""
    (tmp_path / "v.txt").write_text("dog 1 2\n. . . 3 4\n")
    assert open_vectors(tmp_path / "v.txt").words == ["dog", ". . ."]


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff2 2\r\ndog 1 2 \r\ncat 3 4\r\n",
        "dog\t1\t2\ncat\t3\t4",
        "\ufeffdog\t1 2\ncat 3 4\n",
        "2 2\ndog  1 2\ncat\t 3 4\n",
    ],
)
def test_vectors_as_other_programs_write_them(tmp_path: Path, content: str) -> None:
    """Test a byte order mark, line ends of Windows, blanks at the end of a line, and tabs."""
    (tmp_path / "v.txt").write_bytes(content.encode())
    got = open_vectors(tmp_path / "v.txt")
    assert got.words == ["dog", "cat"] and got.vectors.tolist() == [[1, 2], [3, 4]]


FORMS = ["v.vec", "v.bin", "v.vec.gz", "v.bin.gz"]
HEADS = [b"1000000000000 4", b"7 99999999999", b"9" * 5000 + b" 4"]


@pytest.mark.parametrize(
    ("name", "head"), [*((name, head) for name in FORMS for head in HEADS), *((name, b"1 4") for name in FORMS[:3])]
)
def test_a_file_that_does_not_contain_the_announced_words(tmp_path: Path, name: str, head: bytes) -> None:
    """It is refused before memory is allocated, and additional words are not dropped silently."""
    path = tmp_path / name
    if ".bin" in name:
        body = b"".join(word.encode() + b" " + row.tobytes() for word, row in zip(WORDS, TABLE, strict=True))
    else:
        body = b"".join(b"w%d 1 2 3 4\n" % i for i in range(7))
    content = head + b"\n" + body
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(DataError, match=name):
        open_vectors(path)


# --------------------------------------------------------------------------------------------------------------- training


def corpus(sentences: int = 300) -> list[str]:
    """Return sentences about animals or about tools: words of one kind occur together."""
    rng = np.random.default_rng(0)
    kinds = ["Dog cat mouse horse cow sheep", "hammer saw drill wrench nail screw"]
    return [" ".join(rng.choice(kinds[i % 2].split(), 5)) for i in range(sentences)]


def split(text: str) -> list[str]:
    return text.lower().split()


def write_trained(folder: str, seed: int) -> None:
    train_vectors(corpus(), folder, split=split, seed=seed, dim=8, epochs=2)


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
