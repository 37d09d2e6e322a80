"""Rows of tables by their number, as samples: Parquet, Arrow, JSON lines, CSV, TSV and texts of a sentence per line.

A row is what a sample of a shard is. Its columns `txt`, `cls` and `json` are the fields of that name; bytes that are a
picture or a sound are the field `jpg`, `wav`, ...; all others are entries of the field `json`, nested ones by dotted names
(``answer.text``). Parquet is read by row groups, Arrow is mapped into memory. The others, plain or gzipped, are packed into
a Parquet file in the cache folder when they are first read, and again when the file has changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock
from fsspec.implementations.local import LocalFileSystem

from multicse.data import limits
from multicse.data.errors import DataError, DecodeError
from multicse.data.remote import call_storage
from multicse.data.shard_urls import filesystem, options_of, parent, split_options, table_kind
from multicse.data.text_files import read_table

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
READ_AT_ONCE = 1024
"""Samples or rows that are read together, and again together if a store fails."""
GROUP_LETTERS = 2**20
"""Letters of the rows that a packed text table has in a row group: some thousand sentences."""

Row = dict[str, Any]
_T = TypeVar("_T")
_Columns = TypeVar("_Columns", pa.Table, pa.RecordBatch)


class Table(NamedTuple):
    """A file whose rows are read by number."""

    rows: int
    read: Callable[[Sequence[int]], Iterator[Row]]
    """Yields the rows of these numbers, which ascend."""


def scan(url: str) -> tuple[int, int, tuple[str, ...]]:
    """Return rows and bytes of a table, and the names of its columns and of the fields that its first row has.

    Raises:
        DataError: If it cannot be understood, and other errors as `readable` handles them.
    """
    table = _open(url)
    fs, path = filesystem(url)
    size = int(fs.size(path) or 0)
    first = next(table.read([0])) if table.rows else {}
    row = flat(first, options_of(url))
    names = {name for name, value in row.items() if not isinstance(value, bytes)} - {KEY}
    if not isinstance(found := _sample(url, "0", first), str):
        names |= set(found) - {"json"}
    return table.rows, size, tuple(sorted(names))


def read(url: str, indexes: Sequence[int]) -> Iterator[tuple[str, dict[str, bytes] | str]]:
    """Yield key and fields of the rows of these numbers (ascending ones are read fastest); instead of fields what is wrong.

    Raises as `scan`.
    """
    table = _open(url)
    rows = table.read([index for index in indexes if index < table.rows])
    for index in indexes:
        key = f"{index:08d}"
        if index >= table.rows:
            yield key, f"the file has {table.rows} rows only"
            continue
        row = next(rows)
        if row.get(KEY, key) in (None, ""):
            yield key, f"its {KEY} is empty"
            continue
        if KEY in row:
            key = f"{row[KEY]:08d}" if isinstance(row[KEY], int) else str(row[KEY])
        yield key, _sample(url, key, row)


def rows(url: str, first: int = 0, stop: int | None = None) -> Iterator[tuple[int, Row]]:
    """Yield number and columns of the rows from `first` up to `stop`, with dotted names. Raises DataError."""
    end = count(url) if stop is None else stop
    for start in range(first, end, READ_AT_ONCE):
        numbers = range(start, min(end, start + READ_AT_ONCE))
        for number, row in zip(numbers, readable(url, lambda: list(_open(url).read(numbers))), strict=True):  # noqa: B023  # at once
            yield number, flat(row, options_of(url))


def count(url: str) -> int:
    """Return the number of rows of a table. Raises DataError."""
    return readable(url, lambda: _open(url).rows)


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
    place = f"{parent(url)}/{name}"
    fs, path = filesystem(place)
    if (size := call_storage(place, partial(fs.size, path))) and size > limits.MEMBER:
        raise DecodeError(f"{name!r} has {limits.over('MEMBER', size, limits.MEMBER)} bytes")
    return bytes(call_storage(place, partial(fs.cat_file, path)))


# ------------------------------------------------------------------------------------------------------------ kinds of files


def readable(url: str, act: Callable[[], _T]) -> _T:
    """Return the result of `act`, a whole read from `url` as in `call_storage`; every error of it is a DataError."""
    with data_errors(url):
        return call_storage(url, act)


@contextlib.contextmanager
def data_errors(url: str) -> Iterator[None]:
    """Make a DataError of every error that reading from `url` has in the body."""
    try:
        yield
    except (OSError, UnicodeError, pa.ArrowException) as error:
        raise DataError(f"{url} cannot be read: {error}") from None  # whose text may be the URL with its password


def _open(url: str) -> Table:
    fs, path = filesystem(url)
    return _opened(url, str(fs.checksum(path)))


@lru_cache(maxsize=16)
def _opened(url: str, checksum: str) -> Table:
    kind = table_kind(url)
    if kind == "arrow":
        return _arrow(url)
    if kind == "parquet":
        return _parquet(url)
    packed = _parquet(str(_packed(url, str(kind), checksum)))
    return Table(packed.rows, lambda indexes: (json.loads(row["row"]) for row in packed.read(indexes)))


def _packed(url: str, kind: str, checksum: str) -> Path:
    """Return the Parquet file in the cache that holds the rows of a text table, each as JSON; made unless it is there.

    Raises:
        DataError: If a row cannot be read, with its file and line, or if the cache cannot be written.
    """
    separator = options_of(url).get("separator")
    stamp = f"1 {split_options(url)[0]} {checksum} {separator}"  # 1: the form of the file
    packed = limits.cache_path("tables", stamp).with_suffix(".parquet")
    if _is_whole(packed):
        return packed
    lock = FileLock(f"{packed}.lock")
    try:
        packed.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError) as error:  # NotImplementedError: a file system without locks
        raise _not_packed(url, packed, error) from error
    try:  # other processes wait rather than pack the same table
        if not _is_whole(packed):
            fs, path = filesystem(url)
            place = Path(path) if isinstance(fs, LocalFileSystem) else url
            _pack(url, read_table(place, kind, separator="\t" if separator == "tab" else separator), packed)
    finally:
        lock.release()
    return packed


def _is_whole(packed: Path) -> bool:
    """Whether a file in the cache can be opened; one that was cut is packed again."""
    try:
        pq.read_metadata(packed)
    except (OSError, pa.ArrowInvalid):
        return False
    return True


def _pack(url: str, rows: Iterable[tuple[int, Row]], packed: Path) -> None:
    """Write rows into the cache. Raises DataError if that cannot be written, and every error of reading the rows."""
    unread: list[OSError] = []

    def texts() -> Iterator[str]:
        try:
            for _, row in rows:
                yield json.dumps(row)
        except OSError as error:
            unread.append(error)
            raise

    try:
        with tempfile.TemporaryDirectory(dir=packed.parent, ignore_cleanup_errors=True) as folder:
            unfinished = Path(folder) / packed.name
            with pq.ParquetWriter(unfinished, pa.schema({"row": pa.string()}), compression="zstd") as out:
                for group in _groups(texts()):
                    out.write_table(pa.table({"row": group}))
            unfinished.replace(packed)
    except OSError as error:
        if unread:
            raise unread[0] from None
        raise _not_packed(url, packed, error) from error


def _not_packed(url: str, packed: Path, error: Exception) -> DataError:
    return DataError(
        f"{url} cannot be packed into {packed.parent} ({error}); set MULTICSE_CACHE to a folder that can be written, or "
        "pack it into shards"
    )


def _groups(rows: Iterable[str]) -> Iterator[list[str]]:
    """Yield the rows in lists of about `GROUP_LETTERS`."""
    group: list[str] = []
    letters = 0
    for row in rows:
        group.append(row)
        letters += len(row)
        if letters >= GROUP_LETTERS:
            yield group
            group, letters = [], 0
    if group:
        yield group


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
            return validated(pq.ParquetFile(file).read_row_group(number))

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
    return _columns([len(batch) for batch in batches], lru_cache(lambda number: validated(batches[number])))


def validated(columns: _Columns) -> _Columns:
    """Return the columns; ArrowInvalid if a value lies outside them or a text is not UTF-8, which pyarrow does not check."""
    columns.validate(full=True)
    return columns


def _columns(counts: list[int], group: Callable[[int], pa.Table | pa.RecordBatch]) -> Table:
    ends = list(accumulate(counts))

    def rows(indexes: Sequence[int]) -> Iterator[Row]:
        for number, wanted in groupby(indexes, lambda index: bisect_right(ends, index)):
            inside = [index - (ends[number] - counts[number]) for index in wanted]
            yield from group(number).take(inside).to_pylist()

    return Table(sum(counts), rows)
