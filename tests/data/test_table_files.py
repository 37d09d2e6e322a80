"""Tables as other programs write them: separators, quotation, types of Arrow, names of files, and damage."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import multicse
from multicse.data import tables
from multicse.data.errors import DataError
from multicse.data.pack import table_parts
from multicse.data.shard_urls import expand
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
    ("content", "rows"),
    [
        ('text,n\na 5" pipe,1\nhe said "no,2\n', [['a 5" pipe', "1"], ['he said "no', "2"]]),
        ('"text;with;marks",n\n"a;b",1\n', [["a;b", "1"]]),
        ('text;"a, b, c, d"\nx,y;1\n', [["x,y", "1"]]),
        ('"first\nline";n\nx,y;1\n', [["x,y", "1"]]),
        ("sep=;\r\na,b;n\r\nx,y;1\r\n", [["x,y", "1"]]),
        ("text\none\rtwo\r\nthree", [["one"], ["two"], ["three"]]),
        (",text,,\n0,a,,\n", [["0", "a", "", ""]]),
    ],
    ids=["inch", "marks", "quoted header", "header of two lines", "Excel", "three ends", "no names"],
)
def test_tables_from_the_field(content: str, rows: Rows) -> None:
    assert rows_of(content.encode(), "x.csv")[1:] == rows


def test_marks_are_text_where_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text('text\tn\n"So ""it"" is."\t1\n')
    (tmp_path / "x.csv").write_text('text,n\n"So ""it"" is.",1\n')
    for name in ("x.tsv", "x.csv"):
        assert samples(f"{tmp_path}/{name}#quoted=no")[0].fields["text"] == '"So ""it"" is."'


def test_a_separator_that_is_named_is_obeyed(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('a;b,"c;d"\n1;2,3\n')
    for name, row in {",": {"a;b": "1;2", "c;d": "3"}, "%2C,txt=c;d": {"a;b": "1;2", "txt": "3"}}.items():
        assert list(tables.rows(f"{tmp_path}/x.csv#separator={name}")) == [(0, row)]
    (tmp_path / "y.csv").write_text("a,b\tc\n1,2\t3\n")
    for name in ("tab", "\\t", "%09"):
        assert list(tables.rows(f"{tmp_path}/y.csv#separator={name}")) == [(0, {"a,b": "1,2", "c": "3"})]


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


def test_a_file_may_have_a_question_mark_in_its_name(tmp_path: Path) -> None:
    for name in ("what?.csv", "what1.csv"):
        (tmp_path / name).write_text(f"text\n{name}\n")
    for name, files in {
        "what?.csv": ["what?.csv"],
        "what[?]*.csv": ["what?.csv"],
        "wha??.csv": ["what1.csv", "what?.csv"],
    }.items():
        assert [Path(url).name for url in expand(f"{tmp_path}/{name}")[0]] == files
    assert ShardSet.open(f"{tmp_path}/what?.csv").sample(0).fields["txt"] == "what?.csv"  # type: ignore[union-attr]


def test_a_file_and_its_compressed_copy_are_one(tmp_path: Path) -> None:
    for name in ("x.csv", "x.csv.gz", "y.csv.gz"):
        (tmp_path / name).write_bytes(b"")
    assert [Path(url).name for url in expand(str(tmp_path))[0]] == ["x.csv", "y.csv.gz"]


@pytest.mark.parametrize("named", ["x-{0..1}.parquet", "x-*.parquet", ""])
def test_a_folder_may_be_called_like_a_table(named: str, tmp_path: Path) -> None:
    """As Spark and Dask write one."""
    for place in ("x-0.parquet/part-0.parquet", "x-0.parquet/part-1.parquet", "x-1.parquet"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"text": [place]}), tmp_path / place)
    shards = ShardSet.open(f"{tmp_path}/{named}")
    assert [shard.url.removeprefix(f"{tmp_path}/") for shard in shards.shards] == [
        "x-0.parquet/part-0.parquet", "x-0.parquet/part-1.parquet", "x-1.parquet"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["string", "large_string", "string_view", "binary", "large_binary", "binary_view", "dictionary"]
)
def test_a_column_of_every_type_of_texts_is_the_text(kind: str, tmp_path: Path) -> None:
    """Polars writes views, older programs texts that are not marked as such."""
    column = pa.array(["one", "zwölf", None])
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(getattr(pa, kind)())
    pq.write_table(pa.table({"body": column}), tmp_path / "x.parquet")
    assert [sample.fields["txt"] for sample in samples(tmp_path / "x.parquet")] == ["one", "zwölf", None]


def test_two_columns_of_a_name_are_told(tmp_path: Path) -> None:
    twice: Sequence[Any] = [pa.array(["a"]), pa.array(["b"])]
    pq.write_table(pa.Table.from_arrays(twice, names=["text", "text"]), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="two columns have the name 'text'"):
        ShardSet.open(str(tmp_path / "x.parquet"))


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
