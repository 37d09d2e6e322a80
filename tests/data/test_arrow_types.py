"""Random columns of every type of Arrow, at any depth, against `to_pylist`."""

from __future__ import annotations

import datetime
import decimal
import math
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicse.data import tables
from multicse.data.errors import DataError
from multicse.data.shards import RawSample, ShardSet, read

pytest.importorskip("hypothesis", reason="random columns are made by the package hypothesis (extra `test`)")
from hypothesis import event, given, settings
from hypothesis import strategies as st

Make = Callable[[Random], Any]
UNITS = ("s", "ms", "us", "ns")
ZONES = (None, "UTC", "Europe/Berlin", "+05:30", "Mars/Phobos")
NO_TEXT = b"\x80\x81"  # neither a text nor the start of a file


def values(kind: pa.DataType, make: Make) -> Callable[[Random, int], pa.Array]:
    """A function that makes a column of this type with some nulls."""
    return lambda r, n: pa.array([None if r.random() < 0.3 else make(r) for _ in range(n)], kind)


def stored(kind: Any, of: Callable[[Random, int], pa.Array]) -> Callable[[Random, int], pa.Array]:
    return lambda r, n: pa.ExtensionArray.from_storage(kind, of(r, n))


TEXT: Make = lambda r: r.choice(["", "one", "zwölf", "漢😀"])  # noqa: E731
BYTES: Make = lambda r: NO_TEXT * r.randrange(3)  # noqa: E731
SMALL: Make = lambda r: r.randrange(100)  # noqa: E731
FLOAT: Make = lambda r: r.choice([0.5, math.nan, math.inf, -2.0])  # noqa: E731
DAY: Make = lambda r: datetime.date(2000, 1, 1 + r.randrange(28))  # noqa: E731
MONEY: Make = lambda r: decimal.Decimal(r.randrange(1000)).scaleb(-2)  # noqa: E731
MOMENT: Make = lambda r: r.choice([0, 1, 10**9, 2**62])  # noqa: E731  # the last one is beyond Python's dates in most units
DECIMALS = (pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256)
LEAVES: list[Callable[[Random, int], pa.Array]] = [
    *(values(kind, TEXT) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *(values(kind, BYTES) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    values(pa.binary(2), lambda r: NO_TEXT),
    *(values(getattr(pa, f"{sign}int{bits}")(), SMALL) for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(values(kind, FLOAT) for kind in (pa.float16(), pa.float32(), pa.float64())),
    values(pa.bool_(), lambda r: r.random() < 0.5),
    values(pa.date32(), DAY),
    values(pa.date64(), DAY),
    *(values(pa.time32(unit), SMALL) for unit in UNITS[:2]),
    *(values(pa.time64(unit), SMALL) for unit in UNITS[2:]),
    *(values(pa.timestamp(unit, zone), MOMENT) for unit in UNITS for zone in ZONES),
    *(values(pa.duration(unit), MOMENT) for unit in UNITS),
    *(values(kind(5, 2), MONEY) for kind in DECIMALS),
    values(pa.month_day_nano_interval(), lambda r: pa.MonthDayNano([1, 2, SMALL(r)])),
    lambda r, n: pa.nulls(n),
    stored(pa.json_(), values(pa.string(), lambda r: '{"a": 1}')),
    stored(pa.bool8(), values(pa.int8(), lambda r: r.randrange(2))),
    stored(pa.uuid(), values(pa.binary(16), lambda r: NO_TEXT * 8)),
    stored(pa.opaque(pa.string(), "kind", "maker"), values(pa.string(), TEXT)),
]


def mask(r: Random, n: int) -> pa.Array:
    return pa.array([r.random() < 0.2 for _ in range(n)], pa.bool_())


def sizes(r: Random, n: int) -> tuple[list[int], int]:
    """Offsets of n lists, and the length of their values."""
    found = [0]
    for _ in range(n):
        found.append(found[-1] + r.randrange(3))
    return found, found[-1]


def column(r: Random, n: int, depth: int) -> pa.Array:
    """A random column of n rows."""
    if not depth or r.random() < 0.3:
        return r.choice(LEAVES)(r, n)
    kind = r.choice(["list", "large", "fixed", "view", "large view", "struct", "map", "dictionary", "runs", "union"])
    offsets, length = sizes(r, n)
    small, large = pa.array(offsets, pa.int32()), pa.array(offsets, pa.int64())
    counts = [after - before for before, after in pairwise(offsets)]
    if kind == "list":
        return pa.ListArray.from_arrays(small, column(r, length, depth - 1), mask=mask(r, n))
    if kind == "large":
        return pa.LargeListArray.from_arrays(large, column(r, length, depth - 1), mask=mask(r, n))
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(column(r, 2 * n, depth - 1), 2, mask=mask(r, n))
    if kind == "view":
        parts = pa.array(offsets[:-1], pa.int32()), pa.array(counts, pa.int32())
        return pa.ListViewArray.from_arrays(*parts, column(r, length, depth - 1), mask=mask(r, n))
    if kind == "large view":
        parts = pa.array(offsets[:-1], pa.int64()), pa.array(counts, pa.int64())
        return pa.LargeListViewArray.from_arrays(*parts, column(r, length, depth - 1), mask=mask(r, n))
    if kind == "struct":
        names = r.sample(["a", "b", "text", "c.d"], r.randrange(1, 4))
        return pa.StructArray.from_arrays([column(r, n, depth - 1) for _ in names], names=names, mask=mask(r, n))
    if kind == "map":
        keys = pa.array([f"key {i}" for i in range(length)], pa.string())
        return pa.MapArray.from_arrays(small, keys, column(r, length, depth - 1))
    if kind == "dictionary":
        of = r.choice(LEAVES)(r, 4)
        return pa.DictionaryArray.from_arrays(pa.array([r.choice([None, 0, 1, 2, 3]) for _ in range(n)], pa.int8()), of)
    if kind == "runs":
        ends = pa.array([end for end in range(1, n + 1) if end == n or r.random() < 0.5], pa.int32())
        return pa.RunEndEncodedArray.from_arrays(ends, r.choice(LEAVES)(r, len(ends)))
    types = pa.array([r.randrange(2) for _ in range(n)], pa.int8())
    return pa.UnionArray.from_sparse(types, [column(r, n, depth - 1), column(r, n, depth - 1)])


def dotted(row: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a row that are there, by dotted name."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{before}{name}.")
        elif value is not None and value == value:
            yield before + name, "" if value == b"" else value  # no bytes are an empty text


def there(row: dict[str, Any]) -> dict[str, str]:
    return {name: repr(value) for name, value in dotted(row)}


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False), st.sampled_from(["parquet", "arrow"]))
def test_every_type_is_read_as_to_pylist_reads_it_or_is_refused_by_name(r: Random, form: str) -> None:
    n = r.randrange(1, 6)
    table = pa.table({f"column{i}": column(r, n, 3) for i in range(r.randrange(1, 4))})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x.{form}"
        try:
            if form == "parquet":
                pq.write_table(table, path, row_group_size=2)
                table = pq.read_table(path)
            else:
                with pa.ipc.new_file(str(path), table.schema) as out:
                    out.write_table(table, max_chunksize=2)
                table = pa.ipc.open_file(str(path)).read_all()
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OSError) as error:  # Parquet lacks some types
            event(f"pyarrow cannot write it, or read it again: {str(error)[:40]}")
            if path.exists():
                with pytest.raises(DataError, match=rf"x\.{form}"):
                    list(tables.rows(str(path)))
            return
        try:
            wanted = [there(row) for row in table.to_pylist()]
        except Exception as error:
            event(f"pyarrow: {type(error).__name__}")
            with pytest.raises(DataError, match=r"column 'column\d.*cannot be read|the name 'column"):
                list(tables.rows(str(path)))
            return
        try:
            found = [row for _, row in tables.rows(str(path))]
        except DataError as error:  # a field c.d next to c
            assert "two columns have the name 'column" in str(error)
            return
        assert [there(row) for row in found] == wanted
        shard = ShardSet.open(str(path)).shards[0]
        for sample in read(shard, range(n)):
            assert isinstance(sample, RawSample) and {*wanted[0]} <= {*sample.fields}
        event(f"read from {form}")


def test_a_value_that_pyarrow_cannot_convert_is_a_bad_sample(tmp_path: Path) -> None:
    """The other rows are read, and the message names column and type."""
    table = pa.table({"text": ["one", "two", "three"], "when": pa.array([0, 2**62, None], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "x.parquet")
    shard = ShardSet.open(str(tmp_path / "x.parquet")).shards[0]
    one, bad, three = read(shard, range(3))
    assert [sample.fields["txt"] for sample in (one, three) if isinstance(sample, RawSample)] == ["one", "three"]
    assert not isinstance(bad, RawSample) and "column 'when': a value of the type timestamp[us] cannot be read" in bad.reason


def test_two_columns_of_one_dotted_name_are_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": ["x"], "a": [{"b": "y"}]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"two columns have the name 'a\.b'"):
        ShardSet.open(str(tmp_path / "x.parquet"))
    (tmp_path / "x.jsonl").write_text('{"a": {"b": "y"}}\n{"a.b": "x", "a": {"b": "y"}}\n')
    good, bad = read(ShardSet.open(str(tmp_path / "x.jsonl")).shards[0], range(2))
    assert isinstance(good, RawSample) and "two columns have the name 'a.b'" in getattr(bad, "reason", "")
