"""Tables as other programs write them: separators, quotation, types of Arrow, names of files, and damage."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import multicse
from multicse.data import tables
from multicse.data.errors import DataError
from multicse.data.pack import table_parts
from multicse.data.shards import ShardSet
from multicse.data.text_files import read_lines, read_rows
from tests.data.packing import samples

Rows = list[list[str]]


def rows_of(content: bytes, name: str, **options: Any) -> Rows:
    """The cells that we read, header first."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        rows = [row for _, row in read_rows(path, (), **options)]
    return [list(rows[0]) if rows else [], *(list(row.values()) for row in rows)]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("x.csv", 'text,n\na 5" pipe,1\nhe said "no,2\n', [["text", "n"], ['a 5" pipe', "1"], ['he said "no', "2"]]),
        ("x.csv", '"text;with;marks",n\n"a;b",1\n', [["text;with;marks", "n"], ["a;b", "1"]]),
        ("x.csv", 'text;"a, b, c, d"\nx,y;1\n', [["text", "a, b, c, d"], ["x,y", "1"]]),
        ("x.csv", '"first\nline";n\nx,y;1\n', [["first\nline", "n"], ["x,y", "1"]]),
        ("x.csv", "sep=;\r\na,b;n\r\nx,y;1\r\n", [["a,b", "n"], ["x,y", "1"]]),  # by Excel
        ("x.csv", "text\none\rtwo\r\nthree", [["text"], ["one"], ["two"], ["three"]]),
        ("x.csv", ",text,,\n0,a,,\n", [["column1", "text", "column3", "column4"], ["0", "a", "", ""]]),
        ("x.csv#separator=,", 'a;b,"c;d"\n1;2,3\n', [["a;b", "c;d"], ["1;2", "3"]]),
        ("x.csv#separator=%2C,txt=c;d", 'a;b,"c;d"\n1;2,3\n', [["a;b", "txt"], ["1;2", "3"]]),
        *((f"x.csv#separator={tab}", "a,b\tc\n1,2\t3\n", [["a,b", "c"], ["1,2", "3"]]) for tab in ("tab", "\\t", "%09")),
        *((f"x.{kind}#quoted=no", 'text\n"So ""it"" is."\n', [["text"], ['"So ""it"" is."']]) for kind in ("csv", "tsv")),
        ("what?.csv", "text\nOne\n", [["text"], ["One"]]),
    ],
)  # fmt: skip
def test_tables_from_the_field(name: str, content: str, rows: Rows, tmp_path: Path) -> None:
    """Marks are text and separators obeyed where it is said."""
    (tmp_path / name.partition("#")[0]).write_bytes(content.encode())
    found = [row for _, row in tables.rows(f"{tmp_path}/{name}")]
    assert [list(found[0]), *(list(row.values()) for row in found)] == rows


def test_a_field_of_a_missing_object_is_missing(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"q": "a", "answer": {"text": "b"}}\n{"q": "c", "answer": null}\n')
    packed = multicse.pack("table", tmp_path / "x.jsonl", tmp_path / "out", columns=("q", "answer.text"))
    assert packed.record["nsamples"] == 1
    renamed = ShardSet.open(f"{tmp_path}/x.jsonl#txt=answer.text")  # the text of the second row is missing
    assert renamed.samples == 2 and "txt" in renamed.fields
    (tmp_path / "x.csv").write_text("text,text.1\n,a\nb,c\n")  # pandas names the second of two equal columns so
    assert multicse.pack("table", tmp_path / "x.csv", tmp_path / "twice", columns="text.1").record["nsamples"] == 2


def test_a_table_without_rows_is_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet.*the tables have no rows"):
        ShardSet.open(str(tmp_path / "x.parquet"))
    with pytest.raises(DataError, match=r"x\.parquet: the table has no rows"):
        table_parts(str(tmp_path / "x.parquet"))


@pytest.mark.parametrize(
    "kind", ["string", "large_string", "string_view", "binary", "large_binary", "binary_view", "dictionary"]
)
def test_a_column_of_every_type_of_texts_is_the_text(kind: str, tmp_path: Path) -> None:
    """Polars writes views, older programs texts that are not marked as such."""
    column = pa.array(["one", "zwölf", None])
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(getattr(pa, kind)())
    pq.write_table(pa.table({"body": column}), tmp_path / "x.parquet")
    assert [sample.fields["txt"] for sample in samples(tmp_path / "x.parquet")] == ["one", "zwölf", None]


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
        ("a.txt.gz", PACKED[:-9], "after line"),
        ("a.txt.gz", PACKED[:30] + b"\0" * 9 + PACKED[39:], "after line 0"),
        ("a.txt.gz", PACKED[:-6] + b"\0" * 6, "after line 99"),
        ("folder", None, "folder"),
        ("a.txt", None, r"Did you mean 'b\.txt'"),
    ],
    ids=["cut", "damaged", "checksum", "folder", "missing"],
)
def test_bad_files(name: str, content: bytes | None, where: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "b.txt").write_text("beside\n")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=where):
        list(read_lines(tmp_path / name))
