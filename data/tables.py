"""Rows of tables by their number, as samples: Parquet, Arrow, JSON lines, CSV, TSV and texts of a sentence per line.

A row is what a sample of a shard is. Its columns `txt`, `cls` and `json` are the fields of that name; bytes that are a
picture or a sound are the field `jpg`, `wav`, ...; all others are entries of the field `json`, nested ones by dotted names
(``answer.text``). Parquet is read by row groups, Arrow is mapped into memory. The others, plain or gzipped, are packed into
a Parquet file in the cache folder when they are first read, and again when the file has changed.
"""

from __future__ import annotations

import contextlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from multicse.data import limits
from multicse.data.errors import DataError, DecodeError
from multicse.data.remote import call_storage
from multicse.data.shard_urls import checksum as checksum_of
from multicse.data.shard_urls import filesystem, options_of, split_options, table_kind
from multicse.data.text_files import Blank, read_table
from multicse.data.texts import text_of

KEY = "__key__"
"""Column with the name of the sample; without it a row is called by its number, from 0."""
TEXTS = ("text", "sentence", "caption")
"""Columns of which the first that is there is `txt` as well, where there is no `txt`; a table's only text column is, too."""
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
GROUP_LETTERS = 2**20
"""Letters of the rows that a packed text table has in a row group: some thousand sentences."""
READ_AT_ONCE = 1024
"""Samples or rows that are read together, and again together if a store fails."""

_BLANK = "multicse.blank"  # metadata of a packed text table: `Table.blank`
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}

Row = dict[str, Any]
_T = TypeVar("_T")
_Columns = TypeVar("_Columns", pa.Table, pa.RecordBatch)


class Table(NamedTuple):
    """A file whose rows are read by number."""

    rows: int
    read: Callable[[Sequence[int]], Iterator[Row]]
    """Yields the rows of these numbers, which ascend."""
    blank: tuple[int, int] = (0, 0)
    """Number of blank lines in a text table, which are not rows, and the number of the first."""


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
    with contextlib.suppress(DecodeError):
        names |= set(_fields_of(row)) - {"json"}
    return table.rows, size, tuple(sorted(names))


def read(url: str, indexes: Sequence[int]) -> Iterator[tuple[str, dict[str, bytes] | str]]:
    """Yield key and fields of the rows of these numbers (ascending ones are read fastest); instead of fields what is wrong.

    Raises as `scan`.
    """
    table, options = _open(url), options_of(url)
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
        try:
            yield key, _fields_of(flat(row, options))
        except DecodeError as error:
            yield key, f"sample {key!r}: {error}"


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


def blank(url: str) -> tuple[int, int]:
    """Return the number of blank lines in a table, and the number of the first. Raises DataError."""
    return readable(url, lambda: _open(url).blank)


def _fields_of(row: Row) -> dict[str, bytes]:
    """The fields of a flat row as a shard would hold them. Raises DecodeError."""
    fields: dict[str, bytes] = {}
    record: Row = {}
    for name, value in row.items():
        if name == KEY:
            continue
        if isinstance(value, bytes):
            kind = _kind(value) or name
            if kind in fields:
                raise DecodeError(f"two columns hold a {kind}; name one as #{kind}=COLUMN behind the table")
            fields[kind] = value
        elif name in ("txt", "cls", "json"):
            if not isinstance(value, str):
                value = _json(value) if name == "json" else text_of(value, repr(name))
            fields[name] = value.encode("utf-8", "surrogatepass")
        else:
            record[name] = [value] if name == "captions" and isinstance(value, str) else value
    texts = [name for name, value in record.items() if isinstance(value, str)]
    named = next((name for name in TEXTS if name in row), texts[0] if len(texts) == 1 else None)
    if "txt" not in fields and named in record and "json" not in fields:
        value = record[named]
        with contextlib.suppress(DecodeError):  # a stream that reads this field refuses the row, others need it not
            fields["txt"] = (value if isinstance(value, str) else text_of(value, repr(named))).encode(
                "utf-8", "surrogatepass"
            )
        if "caption" in record and named != "caption":  # which captions are, rather than a text that no column names so
            record.setdefault("captions", [caption] if isinstance(caption := record["caption"], str) else caption)
    if record and "json" not in fields:
        fields["json"] = _json(record).encode("utf-8", "surrogatepass")
    return fields


def _kind(value: bytes) -> str | None:
    """Return the kind of a picture or sound; None if it is none."""
    return next((kind for kind, start in MAGIC.items() if re.match(start, value, re.DOTALL)), None)


def _json(value: Any) -> str:
    """JSON in which bytes are texts; what is not UTF-8 in them is refused where it is read as a text."""

    def plain(value: Any) -> str:
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)

    return json.dumps(value, ensure_ascii=False, default=plain)


def flat(row: Row, options: Mapping[str, str] | None = None, before: str = "") -> Row:
    """The row with dotted names for nested columns, and what its options rename; an empty cell, or NaN, is the empty text.

    Bytes that are UTF-8, and no picture or sound, are a text: some programs do not mark texts as such. Hugging Face's
    pictures and sounds, which have `bytes` and `path`, are their bytes, else their path.
    """
    found: Row = {}
    for name, value in row.items():
        if isinstance(value, dict) and set(value) == {"bytes", "path"}:
            value = value["bytes"] or value["path"]
        if isinstance(value, bytes) and name not in MAGIC and not _kind(value):
            with contextlib.suppress(UnicodeDecodeError):
                value = value.decode("utf-8-sig")
        if isinstance(value, dict):
            found |= flat(value, None, f"{before}{name}.")
        else:
            found[before + name] = "" if value is None or value != value else value
    for field, column in (options or {}).items():
        if field != "separator":
            if column not in found:
                raise DecodeError(f"#{field}={column}: no such column; it has {', '.join(found)}")
            found[field] = found.pop(column)
    return found


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
    return _opened(url, checksum_of(url))


@lru_cache(maxsize=16)
def _opened(url: str, checksum: str) -> Table:
    kind = table_kind(url)
    if kind in ("parquet", "arrow"):
        return _parquet(url) if kind == "parquet" else _arrow(url)
    packed = _packed(url, checksum)
    return packed._replace(read=lambda indexes: (json.loads(row["row"]) for row in packed.read(indexes)))


def _packed(url: str, checksum: str) -> Table:
    """Return the table in the cache that holds the rows of a text table, each as JSON; made unless it is there.

    Raises:
        DataError: If the file or a row cannot be read, with its file and line, or if the cache cannot be written.
    """
    separator = options_of(url).get("separator")
    unread: list[OSError] = []

    def texts(blank: Blank) -> Iterator[str]:
        fs, source = filesystem(url)
        try:
            file = Path(source) if isinstance(fs, LocalFileSystem) else url
            for _, row in read_table(file, separator=separator, blank=blank):
                yield json.dumps(row)
        except OSError as error:
            unread.append(error)
            raise

    def write(path: Path) -> None:
        unread.clear()
        group: list[str] = []
        letters, blank = 0, Blank()
        try:
            with pq.ParquetWriter(path, pa.schema({"row": pa.string()}), compression="zstd") as out:
                for text in texts(blank):
                    group.append(text)
                    letters += len(text)
                    if letters >= GROUP_LETTERS:
                        out.write_table(pa.table({"row": group}))
                        group, letters = [], 0
                out.write_table(pa.table({"row": pa.array(group, pa.string())}))
                out.add_key_value_metadata({_BLANK: f"{blank.lines} {blank.first}"})
        except OSError as error:  # of the store, which is tried again, or of the cache
            if unread:
                raise
            raise limits.cache_error(place, error) from error

    stamp = f"4 {split_options(url)[0]} {checksum} {separator}"  # 4: how rows are read, and the form of the file
    place = limits.cache_path("tables", stamp).with_suffix(".parquet")

    def read(path: Path) -> Table:
        table = readable(str(path), partial(_parquet, str(path)))
        lines, first = pq.read_metadata(path).metadata[_BLANK.encode()].split()
        return table._replace(blank=(int(lines), int(first)))

    return limits.cached(place, lambda path: readable(url, partial(write, path)), read)


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
            return _validated(pq.ParquetFile(file).read_row_group(number))

    return _columns([group_.num_rows for group_ in groups], group)


def _arrow(url: str) -> Table:
    """Both forms: a file, and a stream, as Hugging Face's data sets are."""
    fs, path = filesystem(url)
    local = isinstance(fs, LocalFileSystem)
    if not local and (size := fs.size(path)) and size > limits.GROUP:
        raise DataError(f"{url} has {limits.over('GROUP', size, limits.GROUP)} bytes; copy it here, or make Parquet of it")
    source = pa.memory_map(path) if local else pa.BufferReader(fs.cat_file(path))
    try:
        table = pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        table = pa.ipc.open_stream(source).read_all()
        if source.tell() < source.size():  # zeros are how a stream ends
            raise DataError(f"{url} goes on behind the end of its stream at byte {source.tell()}: it is damaged") from None
    batches = table.to_batches()
    return _columns([len(batch) for batch in batches], lru_cache(lambda number: _validated(batches[number])))


def _validated(columns: _Columns) -> _Columns:
    """Return the columns, views as what they are views of: pyarrow cannot take rows of them.

    Raises:
        ArrowInvalid: If two have the same name, a value lies outside them or a text is not UTF-8: pyarrow checks neither.
    """
    columns.validate(full=True)
    names = columns.schema.names
    if twice := sorted(name for name in set(names) if names.count(name) > 1):
        raise pa.ArrowInvalid(f"two columns have the name {twice[0]!r}; rename one")
    types = [_VIEWS.get(field.type, field.type) for field in columns.schema]
    return columns if types == columns.schema.types else columns.cast(pa.schema(list(zip(names, types, strict=True))))


def _columns(counts: list[int], group: Callable[[int], pa.Table | pa.RecordBatch]) -> Table:
    ends = list(accumulate(counts))

    def rows(indexes: Sequence[int]) -> Iterator[Row]:
        for number, wanted in groupby(indexes, lambda index: bisect_right(ends, index)):
            inside = [index - (ends[number] - counts[number]) for index in wanted]
            yield from group(number).take(inside).to_pylist()

    return Table(sum(counts), rows)
