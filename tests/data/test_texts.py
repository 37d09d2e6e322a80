"""Values that are texts, and values that are not, in streams, packing and evaluation."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicse.data import limits
from multicse.data.errors import DecodeError
from multicse.data.pack import table_rows
from multicse.data.shard_writer import UnpackedSample
from multicse.data.shards import RawSample, ShardSet
from multicse.data.streams import decode
from multicse.data.text_files import text_of

TEXTS: list[tuple[Any, str]] = [
    ("a text", "a text"),
    ("nan", "nan"),
    (b"\xef\xbb\xbfz\xc3\xb6", "zö"),
    (None, ""),
    (float("nan"), ""),
    (1, "1"),
    (1.0, "1"),
    (2.5, "2.5"),
    (Decimal("1.50"), "1.50"),
    (datetime.date(2020, 1, 2), "2020-01-02"),
]
NO_TEXTS: list[tuple[Any, str]] = [
    (["a"], "is list, not a text"),
    ({"a": 1}, "is dict, not a text"),
    (True, "is bool, not a text"),
    (float("inf"), "is inf, not a text"),
    (b"\xff", "is not UTF-8"),
    ("a\0b", "zero byte"),
    ("\ud800", "lone surrogate"),
    ("x" * (limits.TEXT + 1), "MULTICSE_MAX_TEXT"),
]


@pytest.mark.parametrize(("value", "text"), TEXTS, ids=repr)
def test_texts(value: Any, text: str) -> None:
    assert text_of(value, "here") == text


@pytest.mark.parametrize(("value", "said"), NO_TEXTS, ids=lambda value: repr(value)[:20])
def test_no_texts(value: Any, said: str) -> None:
    with pytest.raises(DecodeError, match=rf"^here.*{said}"):
        text_of(value, "here")


def test_missing_values_and_numbers_of_classes(tmp_path: Path) -> None:
    """A class that is missing leaves its row out; 1 and 1.0 are one class, and truth values are names."""
    rows = '{"t": "a", "c": 1}\n{"t": NaN, "c": 1}\n{"t": "b", "c": 1.0}\n{"t": "c", "c": NaN}\n{"t": 5, "c": true}\n'
    (tmp_path / "x.jsonl").write_text(rows)
    drafts = table_rows(tmp_path / "x.jsonl", ["t"], label="c")
    found = [(one.fields["txt"], one.label) if isinstance(one, UnpackedSample) else one.name for one in drafts]
    left_out = [f"{tmp_path}/x.jsonl, row {number}" for number in (2, 4)]
    assert found == [(b"a", "1"), left_out[0], (b"b", "1"), left_out[1], (b"5", "True")]
    assert decode.label({"json": b'{"c": 1.0}'}, "c", "k") == 1
    with pytest.raises(DecodeError, match="not a class number"):
        decode.label({"json": b'{"c": 1.5}'}, "c", "k")


def test_captions_are_texts(tmp_path: Path) -> None:
    pq.write_table(pa.table({"captions": [[b"one", b"two"], [b"\xff"]]}), tmp_path / "x.parquet")
    shards = ShardSet.open(str(tmp_path / "x.parquet"))
    good, bad = (shards.sample(number) for number in range(2))
    assert isinstance(good, RawSample) and decode.captions(good.fields, "k") == ["one", "two"]
    assert isinstance(bad, RawSample)
    with pytest.raises(DecodeError, match="is not UTF-8"):
        decode.captions(bad.fields, "k")
