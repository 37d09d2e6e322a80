"""Rows of tables by their number, as samples: Parquet, Arrow, JSON lines, CSV, TSV and texts of a sentence a line.

A row is what a sample of a shard is. Its columns `txt`, `cls` and `json` are the fields of that name; bytes that are a
picture or a sound are the field `jpg`, `wav`, ...; all others are entries of the field `json`, nested ones by dotted names
(``answer.text``). Parquet is read by row groups, Arrow is mapped into memory. Of the others an index of where lines begin is
made once in every process, for which all of the file is read.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from multicse.data import limits
from multicse.data.errors import DataError, DecodeError
from multicse.data.shard_urls import filesystem, options_of, parent, table_kind

KEY = "__key__"
"""Column with the name of the sample; without it a row is called by its number, from 0."""
TEXTS = ("text", "sentence", "caption")
"""Columns of which the first that is there is `txt` as well, where there is no `txt`; a table's only text column is, too."""
FILES = ("file", "file_name", "image", "audio")
"""Columns whose texts name a picture or sound below the table's folder."""
MEDIA = ("jpg", "jpeg", "png", "webp", "wav", "flac", "ogg", "mp3")
MAGIC = {
    "jpg": rb"\xff\xd8\xff",
    "png": rb"\x89PNG",
    "webp": rb"RIFF....WEBP",
    "wav": rb"RIFF....WAVE",
    "flac": rb"fLaC",
    "ogg": rb"OggS",
    "mp3": rb"ID3|\xff[\xe2-\xff]",
}
"""How the files of a kind begin."""
SEPARATORS = ",;\t|"

Row = dict[str, Any]
_T = TypeVar("_T")
_Columns = TypeVar("_Columns", pa.Table, pa.RecordBatch)


class Table(NamedTuple):
    """A file whose rows are read by number."""

    rows: int
    read: Callable[[Sequence[int]], Iterator[Row | DecodeError]]
    """The rows of these numbers, ascending, or what is wrong with each."""


def scan(url: str) -> tuple[int, int, tuple[str, ...]]:
    """Rows and bytes of a table, and the names of its columns and of the fields that its first row has.

    Raises:
        DataError: it cannot be opened, or not be understood.
    """
    table, size = _open(url), _guarded(url, lambda: int(filesystem(url)[0].size(filesystem(url)[1]) or 0))
    names: set[str] = set()
    first = _guarded(url, lambda: next(table.read([0]))) if table.rows else {}
    if isinstance(first, dict):
        row = flat(first, options_of(url))
        names = {name for name, value in row.items() if not isinstance(value, bytes)} - {KEY}
        if not isinstance(found := _sample(url, "0", first), str):
            names |= set(found) - {"json"}
    return table.rows, size, tuple(sorted(names))


def read(url: str, indexes: Sequence[int]) -> Iterator[tuple[str, dict[str, bytes] | str]]:
    """Key and fields of the rows of these numbers (ascending ones are read fastest); instead of fields what is wrong.

    Raises:
        DataError: the file cannot be read.
    """
    table = _open(url)
    rows = _guarded(url, lambda: table.read([index for index in indexes if index < table.rows]))
    for index in indexes:
        key = f"{index:08d}"
        if index >= table.rows:
            yield key, f"the file has {table.rows} rows only"
            continue
        row = _guarded(url, lambda: next(rows))
        if isinstance(row, dict) and KEY in row:
            if row[KEY] in (None, ""):
                row = DecodeError(f"its {KEY} is empty")
            else:
                key = f"{row[KEY]:08d}" if isinstance(row[KEY], int) else str(row[KEY])
        yield key, str(row) if isinstance(row, DecodeError) else _sample(url, key, row)


def rows(url: str, first: int = 0, stop: int | None = None) -> Iterator[tuple[int, Row]]:
    """Number and columns of the rows from `first` up to `stop`, with dotted names. DataError for one that is bad."""
    table = _open(url)
    numbers = range(first, table.rows if stop is None else stop)
    found = table.read(numbers)
    for number in numbers:
        row = _guarded(url, lambda: next(found))
        if isinstance(row, DecodeError):
            raise DataError(f"{url}: {row}")
        yield number, flat(row, options_of(url))


def count(url: str) -> int:
    """Rows of a table."""
    return _open(url).rows


def _sample(url: str, key: str, row: Row) -> dict[str, bytes] | str:
    try:
        return fields_of(flat(row, options_of(url)), url)
    except (DecodeError, OSError) as error:
        return f"sample {key!r}: {error}"


def fields_of(row: Row, url: str) -> dict[str, bytes]:
    """The fields of a flat row as a shard would hold them. Raises DecodeError, and OSError for a file that it names."""
    fields: dict[str, bytes] = {}
    record: Row = {}
    for name, value in row.items():
        if name == KEY:
            continue
        if name in FILES and isinstance(value, str) and value.rpartition(".")[2].lower() in MEDIA:
            value = _file(url, value)
        if isinstance(value, bytes):
            kind = next((kind for kind, start in MAGIC.items() if re.match(start, value, re.DOTALL)), name)
            if kind in fields:
                raise DecodeError(f"two columns hold a {kind}; name one as #{kind}=COLUMN behind the table")
            fields[kind] = value
        elif name in ("txt", "cls", "json"):
            fields[name] = _text(value)
        else:
            record[name] = [value] if name == "captions" and isinstance(value, str) else value
    texts = [name for name, value in record.items() if isinstance(value, str)]
    named = next((name for name in TEXTS if name in texts), texts[0] if len(texts) == 1 else None)
    if "txt" not in fields and named is not None and "json" not in fields:
        fields["txt"] = _text(record[named])
    if record and "json" not in fields:
        fields["json"] = json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
    return fields


def _text(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", "surrogatepass")


def flat(row: Row, options: Mapping[str, str] | None = None, before: str = "") -> Row:
    """The row with dotted names for nested columns, and what its options rename; an empty cell is the empty text.

    Hugging Face's pictures and sounds, which have `bytes` and `path`, are their bytes, else their path.
    """
    found: Row = {}
    for name, value in row.items():
        if isinstance(value, dict) and set(value) == {"bytes", "path"}:
            value = value["bytes"] or value["path"]
        if isinstance(value, dict):
            found |= flat(value, None, f"{before}{name}.")
        else:
            found[before + name] = "" if value is None else value
    for field, column in (options or {}).items():
        if field not in ("separator", "split", "config"):
            if column not in found:
                raise DecodeError(f"#{field}={column}: no such column; it has {', '.join(found)}")
            found[field] = found.pop(column)
    return found


def _file(url: str, name: str) -> bytes:
    """A file below the table's folder: a table of somebody else's names no other file of this machine."""
    if os.path.isabs(name) or "://" in name or ".." in name.split("/"):
        raise DecodeError(f"{name!r} is no path below the table's folder")
    fs, path = filesystem(f"{parent(url)}/{name}")
    if (size := fs.size(path)) and size > limits.MEMBER:
        raise DecodeError(f"{name!r} has {limits.over('MEMBER', size, limits.MEMBER)} bytes")
    return bytes(fs.cat_file(path))


# ------------------------------------------------------------------------------------------------------------ kinds of files


def _guarded(url: str, action: Callable[[], _T]) -> _T:
    try:
        return action()
    except (OSError, UnicodeError, pa.ArrowException) as error:
        raise DataError(f"{url} cannot be read: {error}") from None  # whose text may be the URL with its password


def _open(url: str) -> Table:
    fs, path = filesystem(url)
    return _guarded(url, lambda: _opened(url, str(fs.checksum(path))))


@lru_cache(maxsize=16)
def _opened(url: str, checksum: str) -> Table:
    kind = table_kind(url)
    return {"parquet": _parquet, "arrow": _arrow}[kind](url) if kind in ("parquet", "arrow") else _lines(url, str(kind))


def _parquet(url: str) -> Table:
    fs, path = filesystem(url)
    with fs.open(path, "rb") as file:
        about = pq.ParquetFile(file).metadata
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    if large := [number for number, group in enumerate(groups) if group.total_byte_size > limits.GROUP]:
        size = limits.over("GROUP", groups[large[0]].total_byte_size, limits.GROUP)
        raise DataError(f"{url}: row group {large[0]} has {size} bytes; write it with smaller row groups, or pack it")

    @lru_cache(maxsize=1)  # the next window of a rank goes on in it
    def group(number: int) -> pa.Table:
        with fs.open(path, "rb") as file:
            return sound(pq.ParquetFile(file).read_row_group(number))

    return _columns([group_.num_rows for group_ in groups], group)


def _arrow(url: str) -> Table:
    """Both forms: a file, and a stream, as Hugging Face's data sets are."""
    fs, path = filesystem(url)
    if not isinstance(fs, LocalFileSystem) and (size := fs.size(path)) and size > limits.GROUP:
        raise DataError(f"{url} has {limits.over('GROUP', size, limits.GROUP)} bytes; copy it here, or make Parquet of it")
    source = pa.memory_map(path) if isinstance(fs, LocalFileSystem) else pa.BufferReader(fs.cat_file(path))
    try:
        table = pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        table = pa.ipc.open_stream(source).read_all()
        if source.tell() < source.size():  # zeros are how a stream ends
            raise DataError(f"{url} goes on behind the end of its stream at byte {source.tell()}: it is damaged") from None
    batches = table.to_batches()
    return _columns([len(batch) for batch in batches], lru_cache(lambda number: sound(batches[number])))


def sound(columns: _Columns) -> _Columns:
    """The same, whose values lie inside it and whose texts are UTF-8: pyarrow takes that for granted. Else ArrowInvalid."""
    columns.validate(full=True)
    return columns


def _columns(counts: list[int], group: Callable[[int], pa.Table | pa.RecordBatch]) -> Table:
    ends = list(accumulate(counts))

    def rows(indexes: Sequence[int]) -> Iterator[Row]:
        for number, wanted in groupby(indexes, lambda index: bisect_right(ends, index)):
            inside = [index - (ends[number] - counts[number]) for index in wanted]
            yield from group(number).take(inside).to_pylist()

    return Table(sum(counts), rows)


def _lines(url: str, kind: str) -> Table:
    fs, path = filesystem(url)
    separator = options_of(url).get("separator", "")
    with fs.open(path, "rb") as file:
        starts, stops = _rows_of(url, file, kind)
        header: list[str] = []
        if kind in ("csv", "tsv"):
            if not len(starts):
                raise DataError(f"{url} is empty; its first line names the columns")
            file.seek(starts[0])
            first = file.read(min(stops[0] - starts[0], limits.LINE)).decode("utf-8-sig", "replace")
            separator = {"tab": "\t"}.get(separator, separator) or ("\t" if kind == "tsv" else separator_of(first))
            header = _cells(first, separator, kind)
            if len(set(header)) < len(header):
                raise DataError(f"{url}: two columns of {', '.join(header)} have the same name; rename one")
            starts, stops = starts[1:], stops[1:]

    def rows(indexes: Sequence[int]) -> Iterator[Row | DecodeError]:
        with fs.open(path, "rb") as file:
            for index in indexes:
                start, size = int(starts[index]), int(stops[index] - starts[index])
                try:
                    if size > limits.LINE:
                        raise DecodeError(f"row {index} has {limits.over('LINE', size, limits.LINE)} bytes")
                    file.seek(start)
                    yield _row(file.read(size).decode("utf-8-sig" if not start else "utf-8"), kind, separator, header)
                except UnicodeDecodeError as error:
                    yield DecodeError(f"row {index} is not UTF-8 ({error})")
                except DecodeError as error:
                    yield error
                except (ValueError, RecursionError, csv.Error) as error:
                    yield DecodeError(f"row {index} is no {kind} ({error})")

    return Table(len(starts), rows)


def _row(line: str, kind: str, separator: str, header: list[str]) -> Row:
    if kind == "txt":
        return {"txt": line.strip()}
    if kind == "jsonl":
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError(f"{type(row).__name__}, not an object")
        return row
    cells = _cells(line, separator, kind)
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} cells under {len(header)} columns, parted by {separator!r}")
    return dict(zip(header, cells, strict=True))


def separator_of(header: str) -> str:
    """Which of the usual separators a CSV has, by its first line: the one that is there most often, else a comma."""
    return max(SEPARATORS, key=header.count)


def _cells(line: str, separator: str, kind: str) -> list[str]:
    if kind == "tsv":
        return line.rstrip("\r\n").split(separator)
    csv.field_size_limit(limits.LINE)
    return next(csv.reader(io.StringIO(line, newline=""), delimiter=separator, strict=True))


def _rows_of(url: str, file: Any, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """First byte of every row that is not blank, and the byte after it; a row of a CSV goes on in quotation marks."""
    at = quotes = seen = 0
    ends, visible = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
    while block := file.read(2**22):
        data = np.frombuffer(block, np.uint8)
        if data[:2].tobytes() == b"\x1f\x8b" and not at:
            raise DataError(f"{url} is compressed: gunzip it, or pack it")
        feeds = data == ord("\n")
        if kind == "csv":
            marks = quotes + np.cumsum(data == ord('"'))
            feeds &= marks % 2 == 0
            quotes = int(marks[-1])
        letters = seen + np.cumsum((data > ord(" ")) | (data == ord("\t")) & (kind == "tsv"))
        seen = int(letters[-1])
        places = np.flatnonzero(feeds)
        ends.append(places + at + 1)
        visible.append(letters[places])
        at += len(block)
    if quotes % 2:
        raise DataError(f"{url}: a quotation mark is not closed; name it .tsv if quotation marks are text in it")
    ends.append(np.array([at]))
    visible.append(np.array([seen]))
    bounds, letters = np.concatenate(ends), np.concatenate(visible)
    kept = np.diff(letters) > 0
    return bounds[:-1][kept], bounds[1:][kept]
