"""What the columns of a table are, decided once for all rows: a table of rows, their text and their captions."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicse.data.errors import DecodeError
from multicse.data.shards import RawSample, ShardSet, read
from multicse.data.streams import decode
from multicse.data.tables import FILES
from tests.worlds import write_tar

Row = dict[str, Any]
NONE = "no such column"
BAD = "a bad sample"


def lines(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(rows: list[Row]) -> pa.Table:
    return pa.table({name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)})


def write_arrow(path: Path, rows: list[Row]) -> None:
    with pa.ipc.new_stream(str(path), table(rows).schema) as out:
        out.write_table(table(rows), max_chunksize=2)


FORMS: dict[str, Callable[[Path, list[Row]], Any]] = {
    "x.jsonl": lambda path, rows: path.write_bytes(lines(rows)),
    "x.jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress(lines(rows))),
    "x.parquet": lambda path, rows: pq.write_table(table(rows), path, row_group_size=2),
    "x.arrow": write_arrow,
    "x.tar": lambda path, rows: write_tar(path, [(f"{i:04d}.json", json.dumps(row).encode()) for i, row in enumerate(rows)]),
}
TABLES, JSON, ARROW = [*FORMS][:4], [*FORMS][:2], [*FORMS][2:4]
GAPS = [{}, {"said": "one"}, {}, {"said": "two"}]
NO_TEXTS = [b"\xff\xfe\xfd", b"ID3\4\0\0 not UTF-8 \xff", b"\xff\xfe\0", b"\x89PNG"]
STARTS = ["ID3 tags are", "OggS and others", "fLaC is lossless", "RIFFabcdWAVE", "RIFFabcdWEBP"]
TEXTS: list[tuple[list[str], list[Row], Any]] = [
    # The first of text, sentence and caption, in every row, whatever else a row has.
    *((TABLES, [{"url": "u", **({name: one["said"]} if one else {})} for one in GAPS], [None, "one", None, "two"])
      for name in ("text", "sentence", "caption")),
    (TABLES, [{"sentence": "s", "text": "t"}], ["t"]),
    (TABLES, [{"sentence": "s", "caption": "c"}], ["s"]),
    # Otherwise the only column of texts; numbers and missing numbers are none.
    (TABLES, [{"body": "one", "n": None}, {"body": "two", "n": 0.5}, {"body": None, "n": 1.0}], ["one", "two", None]),
    (TABLES, [{"question": "q", "answer": "a"}], NONE),
    (JSON, [{"question": "why?"}, {"answer": "so."}, {"question": 5, "answer": None}, {}], NONE),
    # A column with that name is not replaced by another one.
    (TABLES, [{"text": 5, "title": "t"}], [5]),
    (TABLES, [{"text": ["a"], "title": "t"}], NONE),
    (TABLES, [{"txt": "x", "text": "t"}], ["x"]),
    # Nor is one named text ever a file, and bytes that are texts are none, however they begin.
    *((ARROW, [Row(text=one, title="t"), Row(text=b"plain", title="t")], [one, "plain"]) for one in NO_TEXTS),
    *((ARROW, [{column: text.encode()}] * 2, [text] * 2) for column in ("text", "body") for text in STARTS),
]  # fmt: skip


@pytest.mark.parametrize(("forms", "rows", "texts"), TEXTS, ids=str)
def test_the_text_of_a_table(forms: list[str], rows: list[Row], texts: Any, tmp_path: Path) -> None:
    for form in forms:
        FORMS[form](tmp_path / form, rows)
        shards = ShardSet.open(str(tmp_path / form))
        assert ("txt" in shards.fields) == (texts is not NONE) and {*FILES}.isdisjoint(shards.fields), form
        samples = [one for one in read(shards.shards[0], range(len(rows))) if isinstance(one, RawSample)]
        assert [one.fields.get("txt", NONE) for one in samples] == ([NONE] * len(rows) if texts is NONE else texts), form


MISSING: dict[str, Any] = {"null": None, "empty": "", "blanks": " \x0b "}
CAPTIONS: list[tuple[list[Row], Any]] = [
    *(([{name: value}], ["a dog"]) for name in ("caption", "captions") for value in ("a dog", ["a dog"])),
    *(([{"captions": [value, "a dog"]}], ["a dog"]) for value in MISSING.values()),
    *(([{"captions": [value]}, {"captions": ["other"]}], BAD) for value in MISSING.values()),
    *(([{"caption": value}, {"caption": "other"}], BAD) for value in MISSING.values()),
    ([{"caption": math.nan}], BAD),
    ([{"caption": "a dog", "text": "t"}], ["a dog"]),
    ([{"caption": ["a cat"], "title": "t"}], ["a cat"]),
    ([{"captions": ["one", "two"], "caption": "c", "title": "t"}], ["one", "two"]),
    ([{"captions": [], "title": "t"}, {"captions": ["other"], "title": "t"}], BAD),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "captions"), CAPTIONS, ids=str)
def test_the_captions_of_a_row(rows: list[Row], captions: Any, form: str, tmp_path: Path) -> None:
    """Those of a table are those of a tar; missing ones are left out, and no other text replaces them."""
    FORMS[form](tmp_path / form, rows)
    sample = ShardSet.open(str(tmp_path / form)).sample(0)
    assert isinstance(sample, RawSample)
    if captions is not BAD:
        assert decode.captions(sample.fields, sample.key) == captions
        return
    with pytest.raises(DecodeError, match="has no captions: all are missing"):
        decode.captions(sample.fields, sample.key)
