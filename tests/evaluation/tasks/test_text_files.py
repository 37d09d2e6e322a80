"""The reader of text files and TSVs: what ends a line, encodings, and errors that name file, line and fix."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation.task import EvaluationError
from evaluation.tasks.labelled_texts import read_labelled
from evaluation.tasks.retrieval import read_captions
from evaluation.tasks.sts import read_raw, read_senteval_sick
from evaluation.tasks.text_files import read_lines, read_table

TEXT = "\ufeffit\u2028is\x85one\x0bline\r\n\n  \nQu\u00e9 ?\t\nlast"


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_only_line_feeds_end_a_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(TEXT.encode()) if name.endswith("gz") else TEXT.encode())
    whole = [(1, "it\u2028is\x85one\x0bline"), (2, ""), (3, "  "), (4, "Qué ?\t"), (5, "last")]
    assert list(read_lines(path, blank=True)) == list(read_lines(path, blank=True, latin=True)) == whole
    assert list(read_lines(path)) == [whole[0], *whole[3:]]


def test_latin_is_of_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("Qué\n".encode() + b"Qu\xe9\n")
    assert [line for _, line in read_lines(path, latin=True)] == ["QuÃ©", "Qué"]


def test_a_table_has_its_columns_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('more\tb\ta\n1\t"x\ty\n\n2\tz\t\n')
    assert list(read_table(path, ("a", "b"))) == [
        (2, {"more": "1", "b": '"x', "a": "y"}),
        (4, {"more": "2", "b": "z", "a": ""}),
    ]
    assert len(list(read_table(path, ("a",), ("text", "b")))) == 2


PACKED = gzip.compress("".join(f"{i}\tsome line\n" for i in range(99)).encode())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good\nb\xe9d\n", r"a\.txt, line 2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        ("a.txt", "utf-16\n".encode("utf-16"), r"a\.txt, line 1: byte 0xff is not UTF-8"),
        (
            "a.txt.gz",
            PACKED[:-9],
            r"a\.txt\.gz cannot be read after line \d+: .*not a complete gzip file, so fetch",
        ),
        ("a.txt.gz", PACKED[:30] + b"\0" * 9 + PACKED[39:], r"a\.txt\.gz cannot be read after line 0: .*gzip file"),
        ("a.txt.gz", PACKED[:-6] + b"\0" * 6, r"a\.txt\.gz cannot be read after line 99: .*gzip file"),
        ("a.txt.gz", b"plain", r"a\.txt\.gz cannot be read after line 0: Not a gzipped file"),
        ("folder", None, r"folder is a folder, a file is needed"),
        ("a.txt", None, r"no file .*a\.txt; did you mean 'b\.txt'\?"),
    ],
    ids=["latin", "utf-16", "cut", "damaged", "checksum", "plain", "folder", "missing"],
)
def test_bad_files(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "b.txt").write_text("beside\n")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(EvaluationError, match=message):
        list(read_lines(tmp_path / name))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"a\.tsv is empty; it needs a header with the tab-separated columns label, text or sentence"),
        ("\n \n", r"a\.tsv is empty"),
        ("lable\ttext\n", r"a\.tsv, line 1: no column 'label'; did you mean 'lable'\? Found 'lable', 'text'"),
        ("\nlabel\ttexts\n", r"line 2: no column 'text'; did you mean 'texts'\? .* label, text or sentence"),
        ("label,text\n", r"no column 'label'.* Found 'label,text'; .*tab-separated"),
        ("label\tlabel\ttext\n", r"more than one column 'label'\. Found"),
        ("label\ttext\na\n", r"line 2: 1 tab-separated fields where the header has 2"),
    ],
)
def test_bad_tables(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(content)
    with pytest.raises(EvaluationError, match=message):
        list(read_table(tmp_path / "a.tsv", ("label",), ("text", "sentence")))


@pytest.mark.parametrize("read", [read_labelled, read_captions, read_raw, read_senteval_sick])
def test_every_reader_names_the_line(read: Callable[[Any], Any], tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"label\ttext\nb\xe9d\tx\n")
    if read in (read_raw, read_captions):
        path = tmp_path / "folder.tsv"
        path.mkdir()
    with pytest.raises(EvaluationError, match=r"a\.tsv, line 2: byte 0xe9|folder\.tsv is a folder, a file is needed"):
        read(path)
