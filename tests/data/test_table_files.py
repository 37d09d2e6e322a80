"""Tables as other programs write them: separators, quotation, line ends, types of Arrow, and files of another kind."""

from __future__ import annotations

import gzip
import json
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
from multicse.data.shard_urls import expand, options_of
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
        ("text\rone\rtwo\r", [["one"], ["two"]]),
        ("text\none\rtwo\r\nthree", [["one"], ["two"], ["three"]]),
        (",text,,\n0,a,,\n", [["0", "a", "", ""]]),
    ],
    ids=["inch", "marks", "quoted header", "header of two lines", "Excel", "Mac", "three ends", "no names"],
)
def test_tables_from_the_field(content: str, rows: Rows) -> None:
    assert rows_of(content.encode(), "x.csv")[1:] == rows


@pytest.mark.parametrize("first", ['"He left," she said.', '"Never."', '"unbalanced', 'an inch: 5"', '"', "'no'"])
def test_marks_of_a_tsv_are_text(first: str) -> None:
    assert rows_of(f"text\tn\n{first}\t1\n".encode(), "x.tsv")[1] == [first, "1"]


@pytest.mark.parametrize(
    ("content", "line", "cell"),
    [
        ('text\tn\n"So ""it"" is."\t1\n', 2, 'So "it" is.'),
        ('text\tn\na\t1\n""\t1\n', 3, ""),
        ('text\tn\n"one\ttwo"\t1\n', 2, "one\ttwo"),
        ('text\tn\n"one\ntwo"\t1\n', 2, "one\ntwo"),
        ('"text"\t"n"\n"Never."\t-1.5e3\n', 1, "Never."),
        ('"text"\nNever.\n', 1, "Never."),
    ],
    ids=["marks", "empty", "separator", "line end", "all but numbers", "one column"],
)
def test_a_tsv_that_looks_quoted_is_told(content: str, line: int, cell: str, tmp_path: Path) -> None:
    """The file extension or an option determines the quoting, never the content."""
    with pytest.raises(DataError, match=rf"x\.tsv, line {line}: .*name it \.csv, or add #quoted=yes"):
        rows_of(content.encode(), "x.tsv")
    assert rows_of(content.replace("\t", ",").encode(), "x.csv")[-1][0] == cell.replace("\t", ",")
    (tmp_path / "x.tsv").write_text(content)
    assert samples(f"{tmp_path}/x.tsv#quoted=yes")[-1].fields["text"] == cell
    assert [row["text"] for _, row in read_rows(tmp_path / "x.tsv#quoted=yes", ["text"])][-1] == cell


def test_marks_are_text_where_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text('text\tn\n"So ""it"" is."\t1\n')
    (tmp_path / "x.csv").write_text('text,n\n"So ""it"" is.",1\n')
    for name in ("x.tsv", "x.csv"):
        assert samples(f"{tmp_path}/{name}#quoted=no")[0].fields["text"] == '"So ""it"" is."'
        with pytest.raises(DataError, match="quoted=maybe; write yes"):
            samples(f"{tmp_path}/{name}#quoted=maybe")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('text,"a"b,n\nx,y,1\n', r"line 1: ',' expected after '\"'"),
        ('text,n\n"a \\"b\\"",1\n', "line 2: .*doubled"),
        ('text,n\na,1\n"open,1\nb,2\n', "line 3: unexpected end of data"),
        ("text,n\none\rtwo,1\n", "line 2: 1 cells under 2 columns.*line ends"),
        ("text,text\na,b\n", "two columns have the name 'text'"),
        ("", "is empty"),
    ],
)
def test_a_csv_that_is_none_is_an_error_that_names_the_line(content: str, said: str) -> None:
    with pytest.raises(DataError, match=rf"x\.csv.*{said}"):
        rows_of(content.encode(), "x.csv")


def test_a_separator_that_is_named_is_obeyed(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('a;b,"c;d"\n1;2,3\n')
    for name, row in {",": {"a;b": "1;2", "c;d": "3"}, "%2C,txt=c;d": {"a;b": "1;2", "txt": "3"}}.items():
        assert list(tables.rows(f"{tmp_path}/x.csv#separator={name}")) == [(0, row)]
    (tmp_path / "y.csv").write_text("a,b\tc\n1,2\t3\n")
    for name in ("tab", "\\t", "%09"):
        assert list(tables.rows(f"{tmp_path}/y.csv#separator={name}")) == [(0, {"a,b": "1,2", "c": "3"})]
    for name in ("ab", "%22", "", ";,txt=", ";,txt"):
        with pytest.raises(DataError, match=r"separator is one character|FIELD=COLUMN"):
            options_of(f"x.csv#separator={name}")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.txt", "a sentence\n".encode("utf-16-le"), "zero bytes as UTF-16"),
        ("x.jsonl", '{"text": "a"}\n'.encode("utf-16-be"), "zero bytes as UTF-16"),
        ("x.csv", gzip.compress(b"text\n", mtime=0), r"add \.gz to its name"),
        ("x.csv", b"PK\x03\x04\xff\0\0", "Excel workbook"),
        ("x.csv.bz2", b"", r"also \.gz.*Decompress"),
        ("x.parquet.gz", b"", r"also \.gz.*Decompress"),
        ("x.json", b"[]", "jq"),
        ("x.jsonl", b'[{"text": "a"}]\n', "line 1: an array of JSON; write one object per line"),
        ("x.jsonl", b'[\n {"text": "a"}\n]\n', "line 1: an array of JSON"),
        ("x.jsonl", b'{"text": "a"},\n{"text": "b"}\n', "line 1: no JSON"),
    ],
    ids=str,
)
def test_another_kind_of_file_is_told_with_the_remedy(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        ShardSet.open(str(tmp_path / name))


def test_a_missing_number_is_no_text(tmp_path: Path) -> None:
    """The only text column is `txt`, also in rows without the number, and if they are the first ones."""
    rows = [{"body": "one", "score": None}, {"body": "two", "score": 0.5}, {"body": "three", "score": None}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    for name in ("x.jsonl", "x.parquet"):
        shards = ShardSet.open(str(tmp_path / name))
        assert "txt" in shards.fields
        assert [shards.sample(i).fields["txt"] for i in range(3)] == ["one", "two", "three"], name  # type: ignore[union-attr]


def test_a_field_of_a_missing_object_is_missing(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"q": "a", "answer": {"text": "b"}}\n{"q": "c", "answer": null}\n')
    packed = multicse.pack("table", tmp_path / "x.jsonl", tmp_path / "out", columns=("q", "answer.text"))
    assert packed.record["nsamples"] == 1
    renamed = ShardSet.open(f"{tmp_path}/x.jsonl#txt=answer.text")  # the text of the second row is missing
    assert renamed.samples == 2 and "txt" in renamed.fields
    (tmp_path / "x.csv").write_text("text,text.1\n,a\nb,c\n")  # pandas names the second of two equal columns so
    assert multicse.pack("table", tmp_path / "x.csv", tmp_path / "twice", columns="text.1").record["nsamples"] == 2


def test_a_partitioned_table_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.parquet" / "lang=en").mkdir(parents=True)
    for name in ("b.parquet", "a.parquet/lang=en/part-0.parquet"):
        pq.write_table(pa.table({"text": ["one"]}), tmp_path / name)
    with pytest.raises(DataError, match=r"a\.parquet has no shards \(of a partitioned table, name the files\)"):
        expand(str(tmp_path))


def test_a_table_without_rows_is_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("text,n\n")
    for name in ("x.parquet", "x.csv"):
        with pytest.raises(DataError, match=rf"{name}.*the tables have no rows"):
            ShardSet.open(str(tmp_path / name))
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


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_texts_and_json_have_three_line_ends(end: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(end.join(["one", "", "two\x0b\u2028", "three"]).encode("utf-8-sig"))
    assert [line for _, line in read_lines(tmp_path / "x.txt")] == ["one", "two\x0b\u2028", "three"]
    (tmp_path / "x.jsonl").write_bytes(end.join(json.dumps({"text": f"{i}\r\n"}) for i in range(3)).encode())
    assert [row["text"] for _, row in tables.rows(str(tmp_path / "x.jsonl"))] == ["0\r\n", "1\r\n", "2\r\n"]


def write(path: Path, columns: dict[str, pa.Array]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        with pa.ipc.new_file(str(path), pa.table(columns).schema) as out:
            out.write_table(pa.table(columns), max_chunksize=2)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize(
    "kind", ["string", "large_string", "string_view", "binary", "large_binary", "binary_view", "dictionary"]
)
def test_texts_of_every_type_of_arrow(kind: str, suffix: str, tmp_path: Path) -> None:
    """Polars writes views, older programs texts that are not marked as such."""
    texts = ["one", "zwölf", None, ""]
    column = pa.array(texts)
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(getattr(pa, kind)())
    write(tmp_path / f"x{suffix}", {"text": column})
    assert [row["text"] for _, row in tables.rows(f"{tmp_path}/x{suffix}")] == ["one", "zwölf", None, ""]
    shards = ShardSet.open(f"{tmp_path}/x{suffix}")
    assert shards.fields == ("text", "txt") and shards.sample(1).fields["txt"] == "zwölf"  # type: ignore[union-attr]


def test_two_columns_of_a_name_are_told(tmp_path: Path) -> None:
    twice: Sequence[Any] = [pa.array(["a"]), pa.array(["b"])]
    pq.write_table(pa.Table.from_arrays(twice, names=["text", "text"]), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="two columns have the name 'text'"):
        ShardSet.open(str(tmp_path / "x.parquet"))


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
