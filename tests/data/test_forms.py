"""Equal rows in all file formats give equal samples: by number, in any order, as a stream, and packed again."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import multicse
from multicse.commands.describe import describe_shards, verify_shards
from multicse.data.errors import DecodeError
from multicse.data.shards import RawSample, ShardSet, read
from multicse.data.streams import decode
from multicse.data.streams.text import TextStream
from tests.data.packing import reader, samples, spelt
from tests.worlds import write_tar

pytest.importorskip("hypothesis", reason="random rows are made by the package hypothesis (extra `test`)")
from hypothesis import given, settings
from hypothesis import strategies as st

Row = dict[str, Any]

TEXT = st.text(st.sampled_from("ab \"'\\,;|\t\n\r\x0b\x85\u2028éß漢😀#=-0[{"), max_size=8)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "said": TEXT | st.none(),
            "heard": TEXT | st.sampled_from(["nan", "NA", "null", "1.0", "true", "0001"]) | st.none(),
            "kind": st.integers(0, 3) | st.none(),
            "about": st.fixed_dictionaries({"place": TEXT | st.none(), "n": st.integers(-5, 5)}),
            "captions": st.lists(TEXT | st.none(), max_size=3),
        }
    ),
    min_size=1,
    max_size=9,
)
TYPES = pa.schema(
    {
        "said": pa.string(),
        "heard": pa.string(),
        "kind": pa.int64(),
        "about": pa.struct({"place": pa.string(), "n": pa.int64()}),
        "captions": pa.list_(pa.string()),
    }
)


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, TYPES)


def lines(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=number % 2 == 0) + "\n" for number, row in enumerate(rows)).encode()


def cells(rows: list[Row], **options: Any) -> bytes:
    text = io.StringIO(newline="")
    flat = [{**row, "about.place": row["about"]["place"], "about.n": row["about"]["n"]} for row in rows]
    names = ["said", "heard", "kind", "about.place", "about.n"]
    out = csv.DictWriter(text, names, extrasaction="ignore", **options)
    out.writeheader()
    out.writerows(flat)
    return text.getvalue().encode()


def plain(rows: list[Row]) -> bytes:
    """A TSV without quotation: a cell contains neither tabs nor line ends. White space is one space for every reader."""

    def cell(value: Any) -> Any:
        return " ".join(value.split()) if isinstance(value, str) else value

    def values(row: Row) -> Row:
        return {name: values(value) if isinstance(value, dict) else cell(value) for name, value in row.items()}

    return cells([values(row) for row in rows], dialect="excel-tab", quoting=csv.QUOTE_NONE, quotechar=None)


def write_arrow(path: Path, rows: list[Row], new: Callable[..., Any]) -> None:
    with new(str(path), TYPES) as out:
        out.write_table(table(rows[:1]))
        out.write_table(table(rows[1:]), max_chunksize=3)


def write_saved(path: Path, rows: list[Row]) -> None:
    datasets.Dataset(table(rows)).save_to_disk(str(path))


def without_nulls(rows: list[Row]) -> bytes:
    """Rows that lack the names of missing values, after a complete one."""
    return lines([*rows[:1], *({name: value for name, value in row.items() if value is not None} for row in rows[1:])])


def write_parts(path: Path, rows: list[Row]) -> None:
    """A folder with the name of a table, as Spark writes it."""
    path.mkdir()
    pq.write_table(table(rows), path / "part-0.parquet")


def write_remote(path: Path, rows: list[Row]) -> None:
    fsspec.filesystem("memory").pipe(f"/{path.name}", lines(rows))


def tar(path: Path, rows: list[Row]) -> None:
    write_tar(path, [(f"{i:08d}.json", json.dumps(row).encode()) for i, row in enumerate(rows)])


def tar_of_fields(path: Path, rows: list[Row]) -> None:
    """With the dotted names of nested columns, since a tar has no columns."""
    nested = [{**row, **{f"about.{name}": value for name, value in row["about"].items()}} for row in rows]
    tar(path, nested)


class Form(NamedTuple):
    """How rows are written to a file or URL, and what they cannot say there."""

    name: str
    write: Callable[[Path, list[Row]], Any]
    lists: bool = True
    """Columns may contain lists of texts."""


FORMS = {
    "tar": Form("x.tar", tar_of_fields),
    "parquet": Form("x.parquet", lambda path, rows: pq.write_table(table(rows), path, row_group_size=2)),
    "arrow file": Form("x.arrow", lambda path, rows: write_arrow(path, rows, pa.ipc.new_file)),
    "arrow stream": Form("x.arrow", lambda path, rows: write_arrow(path, rows, pa.ipc.new_stream)),
    "a folder of the library datasets": Form("saved", write_saved),
    "a folder with the name of a table": Form("x.parquet", write_parts),
    "jsonl": Form("x.jsonl", lambda path, rows: path.write_bytes(lines(rows))),
    "jsonl, blank lines": Form("x.jsonl", lambda path, rows: path.write_bytes(lines(rows).replace(b"\n", b"\r\n\r\n"))),
    "jsonl, no nulls": Form("x.jsonl", lambda path, rows: path.write_bytes(without_nulls(rows))),
    "jsonl.gz": Form("x.jsonl.gz", lambda path, rows: path.write_bytes(gzip.compress(lines(rows)))),
    "jsonl in a store": Form("memory://x.jsonl", write_remote),
    "csv": Form("x.csv", lambda path, rows: path.write_bytes(cells(rows)), lists=False),
    "csv, UTF-16": Form("x.csv", lambda path, rows: path.write_bytes(cells(rows).decode().encode("utf-16")), lists=False),
    "csv, all quoted": Form("x.csv", lambda path, rows: path.write_bytes(cells(rows, quoting=csv.QUOTE_ALL)), lists=False),
    "csv with ;": Form("x.csv", lambda path, rows: path.write_bytes(cells(rows, delimiter=";")), lists=False),
    "csv with ^": Form("x.csv#separator=^", lambda path, rows: path.write_bytes(cells(rows, delimiter="^")), lists=False),
    "csv.gz": Form("x.csv.gz", lambda path, rows: path.write_bytes(gzip.compress(cells(rows))), lists=False),
    "tsv": Form("x.tsv#quoted=no", lambda path, rows: path.write_bytes(plain(rows)), lists=False),
    "tsv.gz": Form("x.tsv.gz#quoted=no", lambda path, rows: path.write_bytes(gzip.compress(plain(rows))), lists=False),
    "tsv, quoted": Form(
        "x.tsv#quoted=yes", lambda path, rows: path.write_bytes(cells(rows, dialect="excel-tab")), lists=False
    ),
}
COLUMNS = ("said", "heard", "about.place")


def spaced(value: str | None) -> str:
    return " ".join((value or "").split())


def outcome(act: Callable[[], Any]) -> Any:
    """The result, or that the sample is bad."""
    try:
        return act()
    except DecodeError as error:
        assert "sample '0000" in str(error) and re.search(
            "is empty|has no captions|not a class number|has no field", str(error)
        ), error
        return DecodeError


def place_of(form: str, rows: list[Row], folder: Path) -> str:
    name, write, _ = FORMS[form]
    write(folder / name.partition("#")[0].removeprefix("memory://"), rows)
    return name if "://" in name else f"{folder}/{name}"


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(rows=ROWS, data=st.data())
def test_any_position_of_any_form(form: str, rows: list[Row], data: Any) -> None:
    """Texts, missing ones, nested ones, classes, lists of captions; a number is a text, and `nan` is one too."""
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=12), "order")
    with tempfile.TemporaryDirectory() as folder:
        shards = ShardSet.open(place_of(form, rows, Path(folder)))
        assert shards.samples == len(rows)
        for number, sample in zip(order, read(shards.shards[0], order), strict=True):
            row = rows[number]
            assert isinstance(sample, RawSample) and sample.key == f"{number:08d}"
            for name, value in (("said", row["said"]), ("heard", row["heard"]), ("about.place", row["about"]["place"])):
                found = outcome(lambda: decode.text(sample.fields, (name,), sample.key))  # noqa: B023  # called at once
                assert found == ([spaced(value)] if spaced(value) else DecodeError), name
                assert decode.text(sample.fields, (name,), sample.key, " ") == [spaced(value) or " "], name
            assert decode.text(sample.fields, ("about.n",), sample.key) == [str(row["about"]["n"])]
            kind = outcome(lambda: decode.label(sample.fields, "kind", sample.key))  # noqa: B023
            assert kind == (DecodeError if row["kind"] is None else row["kind"])
            if FORMS[form].lists:
                captions = outcome(lambda: decode.captions(sample.fields, sample.key))  # noqa: B023
                listed = [" ".join(text.split()) for text in row["captions"] if text and text.strip()]
                assert captions == (listed or DecodeError)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(rows=ROWS)
def test_any_form_is_packed_to_the_same_samples(form: str, rows: list[Row]) -> None:
    """In both forms of shards: all rows with the texts, the others counted; the description shows as many."""
    wanted = {
        f"{number:08d}": texts
        for number, row in enumerate(rows)
        if all(texts := [spaced(row["said"]), spaced(row["heard"])])
    }
    with tempfile.TemporaryDirectory() as folder:
        place = place_of(form, rows, Path(folder))
        assert f"{len(rows):,} samples in 1 shards" in describe_shards(place)
        if form == "tar" or not wanted:
            return
        for packed in ("tar", "parquet"):
            options: Row = {"columns": ("said", "heard"), "format": packed, "label": "about.n"}
            record = multicse.pack("table", place, Path(folder) / packed, **options).record
            left_out = len(rows) - len(wanted) + blank_lines(form, rows)
            assert (record["nsamples"], record["dropped"]) == (len(wanted), left_out)
            found = samples(Path(folder) / packed)
            assert {one.key: decode.text(one.fields, ("said", "heard"), one.key) for one in found} == wanted
            classes = [record["classes"][decode.label(one.fields, "cls", one.key)] for one in found]
            assert sorted(classes) == sorted(str(rows[int(number)]["about"]["n"]) for number in wanted)
            assert verify_shards(str(Path(folder) / packed)) == []


def blank_lines(form: str, rows: list[Row]) -> int:
    """Blank lines are left out and counted."""
    return len(rows) if "blank" in form else 0


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=3, deadline=None, derandomize=True)
@given(rows=ROWS)
def test_any_form_is_the_same_stream(form: str, rows: list[Row]) -> None:
    """The batches of a stream are these of the tar, in its order, with a blank for a missing text."""
    with tempfile.TemporaryDirectory() as folder:
        config = TextStream(
            shards=place_of(form, rows, Path(folder)), columns=COLUMNS, keep_empty=True, batch_size=1, segments=1, window=4
        )
        batches, order = reader(config), reader(config.model_copy(update={"columns": ("about.n",)}))
        for _ in range(2 * len(rows)):
            key = next(order).keys[0]
            batch = next(batches)
            row = rows[int(key.rpartition("/")[2])]
            assert batch.keys == [key]
            texts = [spaced(text) or " " for text in (row["said"], row["heard"], row["about"]["place"])]
            assert [text.rstrip() for text in spelt(batch["input_ids"])] == [text.rstrip() for text in texts]
        batches.close()
        order.close()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(texts=st.lists(TEXT, min_size=1, max_size=9), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_text_has_a_sample_per_line(texts: list[str], end: str) -> None:
    """Plain, compressed, in a table, in a tar and packed; no other separator ends a line."""
    texts = [text.replace("\r", " ").replace("\n", " ") for text in texts]
    wanted = [" ".join(text.split()) for text in texts if text.strip()]
    if not wanted:
        return
    content = end.join(texts).encode()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "x.txt").write_bytes(content)
        (folder / "y.txt.gz").write_bytes(gzip.compress(content))
        pq.write_table(pa.table({"txt": [text for text in texts if text.strip()]}), folder / "x.parquet")
        write_tar(folder / "x.tar", [(f"{i}.txt", text.encode()) for i, text in enumerate(texts) if text.strip()])
        for form in ("tar", "parquet"):
            multicse.pack("text", folder / "x.txt", folder / form, format=form, shuffle=False)
        for place in ("x.txt", "y.txt.gz", "x.parquet", "x.tar", "tar", "parquet"):
            found = [decode.text(one.fields, ("txt",), one.key)[0] for one in samples(folder / place)]
            assert found == wanted, place
