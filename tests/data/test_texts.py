"""Values that are texts, captions and classes, and values that are not, for all that read them."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from multicse.data import limits
from multicse.data.errors import DecodeError
from multicse.data.pack import table_rows
from multicse.data.shard_writer import UnpackedSample
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
READERS: dict[str, Callable[[Any], str]] = {
    "a value": lambda value: text_of(value, "here"),
    "a column": lambda value: decode.text({"column": value}, ["column"], "here", "")[0],
    "a caption": lambda value: "".join(decode.captions({"captions": [value, "."]}, "here")[:-1]),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("value", "text"), TEXTS, ids=repr)
def test_texts(value: Any, text: str, read: Callable[[Any], str]) -> None:
    assert read(value) == text


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("value", "said"), NO_TEXTS, ids=lambda value: repr(value)[:20])
def test_no_texts(value: Any, said: str, read: Callable[[Any], str]) -> None:
    with pytest.raises(DecodeError, match=rf"here.*{said}") as error:
        read(value)
    str(error.value).encode()


def test_fields_and_entries_of_the_json_are_columns_with_single_white_space() -> None:
    record = ' {"sent0": " A\\tman \\n walks. ", "sent1": "Grüße", "n": 3} '.encode()
    fields = {"txt": "\ufeffhello\r\n".encode(), "json": record}
    assert decode.text(fields, ["sent0", "sent1", "txt", "n"], key="a") == ["A man walks.", "Grüße", "hello", "3"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"txt": b" \n\t"}, "'txt' is empty"),
        ({}, "no field 'txt'; it has no field"),
        ({"json": b'{"\\ud800": 1}'}, "no field 'txt'; it has json"),
        ({"json": b"{"}, "its json cannot be read"),
        ({"json": b"[" * 100_000}, "its json cannot be read"),
        ({"json": b'{"txt": ' + b"9" * 5000 + b"}"}, "its json cannot be read"),
        ({"json": b"[1]"}, "its json is not an object"),
        ({"json": b'{"txt": "half \\ud800"}'}, "lone surrogate"),
        ({"json": b'{"txt": "a", "more": "' + b"x" * 2**20 + b'"}'}, "MULTICSE_MAX_JSON"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_columns_that_cannot_be_read(fields: dict[str, bytes], said: str) -> None:
    with pytest.raises(DecodeError, match=f"sample 'a'.*{said}") as error:
        decode.text(fields, ["txt"], key="a")
    str(error.value).encode()


CLASSES: list[tuple[dict[str, Any], int]] = [
    ({"cls": b"7\n"}, 7),
    ({"json": b'{"cls": 12}'}, 12),
    ({"json": b'{"cls": 1.0}'}, 1),
    ({"cls": 2.0}, 2),
]
NO_CLASSES: list[dict[str, Any]] = [
    *({"cls": value} for value in (b"dog", b"-1", b"1.5", b"", b"9" * 30, b"9" * 5000, None, [1])),
    *({"json": value} for value in (b'{"cls": true}', b'{"cls": 1.5}', b'{"cls": -1}')),
    {"jpg": b""},
]


def test_classes() -> None:
    assert [decode.label(fields, "cls", key="a") for fields, _ in CLASSES] == [number for _, number in CLASSES]
    for fields in NO_CLASSES:
        with pytest.raises(DecodeError, match=r"'a'.*('cls' is .*, not a class number|no field 'cls'; it has jpg)"):
            decode.label(fields, "cls", key="a")


def test_a_row_whose_text_or_class_is_missing_is_left_out(tmp_path: Path) -> None:
    """1 and 1.0 are one class, and truth values are names."""
    rows = '{"t": "a", "c": 1}\n{"t": NaN, "c": 1}\n{"t": "b", "c": 1.0}\n{"t": "c", "c": NaN}\n{"t": 5, "c": true}\n'
    (tmp_path / "x.jsonl").write_text(rows)
    drafts = table_rows(tmp_path / "x.jsonl", ["t"], label="c")
    found = [(one.fields["txt"], one.label) if isinstance(one, UnpackedSample) else one.name for one in drafts]
    left_out = [f"{tmp_path}/x.jsonl, row {number}" for number in (2, 4)]
    assert found == [(b"a", "1"), left_out[0], (b"b", "1"), left_out[1], (b"5", "True")]
