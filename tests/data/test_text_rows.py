"""The reader of text files and tables: what ends a line, encodings, quoting, and errors that name file and line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from multicse.data.errors import DataError
from multicse.data.text_files import read_lines, read_rows

TEXT = "\ufeffit\u2028is\x85one\x0bline\r\n\n  \nQu\u00e9 ?\t\nlast"


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_only_line_feeds_end_a_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(TEXT.encode()) if name.endswith("gz") else TEXT.encode())
    whole = [(1, "it\u2028is\x85one\x0bline"), (2, ""), (3, "  "), (4, "Qué ?\t"), (5, "last")]
    assert list(read_lines(path, blank=True)) == list(read_lines(path, blank=True, latin=True)) == whole
    assert list(read_lines(path)) == [whole[0], *whole[3:]]


def test_rows_have_their_columns_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('more\tb\ta\n1\t"x\ty\n\n2\tz\t\n\t\t\n')
    rows = [{"more": "1", "b": '"x', "a": "y"}, {"more": "2", "b": "z", "a": ""}, {"more": "", "b": "", "a": ""}]
    assert list(read_rows(path, ("a", "b"))) == list(zip([2, 4, 5], rows, strict=True))
    assert len(list(read_rows(path, ("a",), ("text", "b")))) == 3


PACKED = gzip.compress("".join(f"{i}\tsome line\n" for i in range(99)).encode())


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.txt", b"good\nb\xe9d\n", "line 2: byte 0xe9"),
        ("a.txt.gz", PACKED[:-9], "after line"),
        ("a.txt.gz", PACKED[:30] + b"\0" * 9 + PACKED[39:], "after line 0"),
        ("a.txt.gz", PACKED[:-6] + b"\0" * 6, "after line 99"),
        ("folder", None, "folder"),
        ("a.txt", None, r"Did you mean 'b\.txt'"),
    ],
    ids=["latin", "cut", "damaged", "checksum", "folder", "missing"],
)
def test_bad_files(name: str, content: bytes | None, where: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "b.txt").write_text("beside\n")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=where):
        list(read_lines(tmp_path / name))


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("", "label"),
        ("lable\ttext\n", "'label'. Did you mean 'lable'"),
        ("label\tother\n", "'text'"),
        ("label\tlabel\ttext\n", "two columns"),
        ("label\ttext\na\n", "line 2"),
    ],
)
def test_bad_tables(content: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(content)
    with pytest.raises(DataError, match=where):
        list(read_rows(tmp_path / "a.tsv", ("label",), ("text", "sentence")))
