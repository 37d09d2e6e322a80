"""Rows of tables by number, as samples: Parquet, Arrow, JSON lines, CSV, TSV and texts with one sentence per line.

The columns `txt`, `cls` and `json` of a row are the fields with these names; bytes of an image or audio clip are the field
`jpg`, `wav`, ...; all other columns are entries of the field `json`. Parquet is read by row groups, Arrow is mapped into
memory. Text tables are packed into a Parquet file in the cache folder on first use, and again when the file has changed.
"""

from __future__ import annotations

import contextlib
import json
import math
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
from multicse.data.text_files import Blank, read_table, text_of

KEY = "__key__"
"""Column with the name of the sample. Default: the number of the row, from 0."""
TEXTS = ("text", "sentence", "caption")
"""Columns that replace a missing column `txt`: the first existing column, otherwise the only text column of the table."""
MAGIC = {
    "jpg": rb"\xff\xd8\xff",
    "png": rb"\x89PNG",
    "webp": rb"RIFF....WEBP",
    "wav": rb"(?:RIFF|RIFX|RF64)....WAVE",
    "flac": rb"fLaC",
    "ogg": rb"OggS",
    "mp3": rb"ID3|\xff[\xe2-\xff]",
}
"""First bytes of the files of a kind."""
GROUP_LETTERS = 2**20
"""Characters in a row group of a packed text table: some thousand sentences."""
READ_AT_ONCE = 1024
"""Samples or rows that are read together, and read again together if a store fails."""

FIRST = 16
"""Rows that show the fields of a table: in the first ones a value may be missing."""

_BLANK = "multicse.blank"  # metadata of a packed text table: `Table.blank`
_NUMBERS = "multicse.numbers"  # the same: JSON list of the columns without texts
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}

Row = dict[str, Any]
_T = TypeVar("_T")
_Columns = TypeVar("_Columns", pa.Table, pa.RecordBatch)


class Table(NamedTuple):
    """File with rows that are read by number."""

    rows: int
    read: Callable[[Sequence[int]], Iterator[Row]]
    """Yields the rows of these numbers, which ascend."""
    blank: tuple[int, int] = (0, 0)
    """Number of blank lines in a text table, which are not rows, and the number of the first."""


def scan(url: str) -> tuple[int, int, tuple[str, ...]]:
    """Return the number of rows of a table, its bytes, and the names of its columns and of the fields of its first rows.

    Call it through `readable`, which converts errors that are not a DataError.
    """
    table = _open(url)
    fs, path = filesystem(url)
    size = int(fs.size(path) or 0)
    names: set[str] = set()
    for number, first in enumerate(table.read(range(min(table.rows, FIRST)))):
        try:
            row = flat(first, options_of(url))
        except DecodeError:
            if number == 0:
                raise
            continue  # a bad sample
        names |= {name for name, value in row.items() if not isinstance(value, bytes)} - {KEY}
        with contextlib.suppress(DecodeError):
            names |= set(_fields_of(row)) - {"json"}
    return table.rows, size, tuple(sorted(names))


def read(url: str, indexes: Sequence[int]) -> Iterator[tuple[str, dict[str, bytes] | str]]:
    """Yield key and fields of rows; of a row that cannot be used, an error message instead of fields.

    Args:
        url: Table.
        indexes: Numbers of the rows; ascending numbers are read fastest.
    """
    table, options = _open(url), options_of(url)
    rows = table.read([index for index in indexes if index < table.rows])
    for index in indexes:
        key = f"{index:08d}"
        if index >= table.rows:
            yield key, f"the file has {table.rows} rows only"
            continue
        row = next(rows)
        value = row.get(KEY, key)
        if value in (None, "") or value != value:
            yield key, f"its {KEY} is empty"
            continue
        if KEY in row:
            key = f"{row[KEY]:08d}" if isinstance(row[KEY], int) else str(row[KEY])
        try:
            yield key, _fields_of(flat(row, options))
        except DecodeError as error:
            yield key, f"sample {key!r}: {error}"


def rows(url: str, first: int = 0, stop: int | None = None) -> Iterator[tuple[int, Row]]:
    """Yield number and columns, with dotted names, of the rows from `first` up to `stop` (None: all) of a table."""
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
    """Return the fields of a flat row, as in a shard. Raises DecodeError."""
    fields: dict[str, bytes] = {}
    record: Row = {}
    for name, value in row.items():
        if name == KEY:
            continue
        if isinstance(value, bytes):
            kind = _kind(value) or name
            if kind in fields:
                raise DecodeError(f"two columns contain a {kind}; name one by #{kind}=COLUMN after the table")
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
        with contextlib.suppress(DecodeError):  # a stream that reads this field refuses the row, others do not need it
            fields["txt"] = (value if isinstance(value, str) else text_of(value, repr(named))).encode(
                "utf-8", "surrogatepass"
            )
        if "caption" in record and named != "caption":  # captions have priority over `txt`, which is another column here
            record.setdefault("captions", [caption] if isinstance(caption := record["caption"], str) else caption)
    if record and "json" not in fields:
        fields["json"] = _json(record).encode("utf-8", "surrogatepass")
    return fields


def _kind(value: bytes) -> str | None:
    """Return the kind of an image or audio file; None for other bytes."""
    return next((kind for kind, start in MAGIC.items() if re.match(start, value, re.DOTALL)), None)


def _json(value: Any) -> str:
    """Return JSON in which bytes are texts. Bytes that are not UTF-8 are refused when they are read as a text."""

    def plain(value: Any) -> str:
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)

    return json.dumps(value, ensure_ascii=False, default=plain)


def flat(row: Row, options: Mapping[str, str] | None = None, before: str = "") -> Row:
    """Return a row with dotted names for nested columns. A missing text is the empty text, a missing number (NaN) None.

    Bytes that are UTF-8, and not an image or audio file, are a text, since some programs do not mark texts as such. Images
    and audio clips of Hugging Face, which have `bytes` and `path`, are their bytes, otherwise their path.

    Args:
        row: Columns by name.
        options: Options of the table (`options_of`), which rename columns.
        before: Prefix of the names.

    Raises:
        DecodeError: If an option names a column that does not exist.
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
            found[before + name] = "" if value is None else None if value != value else value
    for field, column in (options or {}).items():
        if field != "separator":
            if column not in found:
                raise DecodeError(f"#{field}={column}: no such column; it has {', '.join(found)}")
            found[field] = found.pop(column)
    return found


# ------------------------------------------------------------------------------------------------------------ kinds of files


def readable(url: str, act: Callable[[], _T]) -> _T:
    """Return the result of `act`, a complete read from `url` as in `call_storage`, with every error as a DataError."""
    with data_errors(url):
        return call_storage(url, act)


@contextlib.contextmanager
def data_errors(url: str) -> Iterator[None]:
    """Convert errors of reading from `url` in the body to DataError."""
    try:
        yield
    except (OSError, UnicodeError, pa.ArrowException) as error:
        raise DataError(f"{url} cannot be read: {error}") from None  # the text may contain the URL with its password


def _open(url: str) -> Table:
    return _opened(url, checksum_of(url))


@lru_cache(maxsize=16)
def _opened(url: str, checksum: str) -> Table:
    kind = table_kind(url)
    if kind in ("parquet", "arrow"):
        return _parquet(url) if kind == "parquet" else _arrow(url)
    return _packed(url, checksum)


def _packed(url: str, checksum: str) -> Table:
    """Return the table in the cache with the rows of a text table, each as JSON. It is made if it does not exist."""
    separator = options_of(url).get("separator")
    fs, source = filesystem(url)
    file = Path(source) if isinstance(fs, LocalFileSystem) else url

    def write(path: Path) -> None:
        group: list[str] = []
        letters, blank = 0, Blank()
        names, texts = set[str](), set[str]()
        with pq.ParquetWriter(path, pa.schema({"row": pa.string()}), compression="zstd") as out:

            def flush() -> None:
                with limits.writing(place):
                    out.write_table(pa.table({"row": pa.array(group, pa.string())}))
                group.clear()

            for _, row in read_table(file, separator=separator, left_out=blank):
                texts.update(name for name, value in row.items() if isinstance(value, str))
                names.update(row)
                group.append(json.dumps(row))
                letters += len(group[-1])
                if letters >= GROUP_LETTERS:
                    flush()
                    letters = 0
            flush()
            numbers = json.dumps(sorted(names - texts))
            out.add_key_value_metadata({_BLANK: f"{blank.lines} {blank.first}", _NUMBERS: numbers})

    stamp = f"5 {split_options(url)[0]} {checksum} {separator}"  # 5: how rows are read, and the form of the file
    place = limits.cache_path("tables", stamp).with_suffix(".parquet")

    def read(path: Path) -> Table:
        table = readable(str(path), partial(_parquet, str(path)))
        metadata = pq.read_metadata(path).metadata
        lines, first = metadata[_BLANK.encode()].split()
        numbers = json.loads(metadata[_NUMBERS.encode()])

        def rows(indexes: Sequence[int]) -> Iterator[Row]:
            for packed in table.read(indexes):
                row = json.loads(packed["row"])
                yield row | {name: math.nan for name in numbers if name in row and row[name] is None}

        return Table(table.rows, rows, (int(lines), int(first)))

    return limits.cached(place, lambda path: readable(url, partial(write, path)), read)


def _parquet(url: str) -> Table:
    fs, path = filesystem(url)
    with fs.open(path, "rb") as file:
        about = pq.ParquetFile(file).metadata
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    if large := [number for number, group in enumerate(groups) if group.total_byte_size > limits.GROUP]:
        size = limits.over("GROUP", groups[large[0]].total_byte_size, limits.GROUP)
        raise DataError(f"{url}: row group {large[0]} has {size} bytes; write it with smaller row groups, or pack it")

    @lru_cache(maxsize=1)  # the next window of a rank continues in it
    def group(number: int) -> pa.Table:
        with fs.open(path, "rb") as file:
            return _validated(pq.ParquetFile(file).read_row_group(number))

    return _columns([group_.num_rows for group_ in groups], group)


def _arrow(url: str) -> Table:
    """Open Arrow's file format, or its stream format, which the library datasets writes."""
    fs, path = filesystem(url)
    local = isinstance(fs, LocalFileSystem)
    if not local and (size := fs.size(path)) and size > limits.GROUP:
        raise DataError(
            f"{url} has {limits.over('GROUP', size, limits.GROUP)} bytes; copy it to this machine, or convert it to Parquet"
        )
    source = pa.memory_map(path) if local else pa.BufferReader(fs.cat_file(path))
    try:
        table = pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        table = pa.ipc.open_stream(source).read_all()
        if source.tell() < source.size():  # a stream ends with zeros
            raise DataError(f"{url} continues after the end of its stream at byte {source.tell()}: it is damaged") from None
    batches = table.to_batches()
    return _columns([len(batch) for batch in batches], lru_cache(lambda number: _validated(batches[number])))


def _validated(columns: _Columns) -> _Columns:
    """Return the columns, with views converted to plain texts and bytes: pyarrow cannot take rows of views.

    Two columns with the same name, and values that pyarrow did not check (buffers, UTF-8), raise ArrowInvalid.
    """
    columns.validate(full=True)
    names = columns.schema.names
    if twice := sorted(name for name in set(names) if names.count(name) > 1):
        raise pa.ArrowInvalid(f"two columns have the name {twice[0]!r}; rename one")
    types = [_VIEWS.get(field.type, field.type) for field in columns.schema]
    return columns if types == columns.schema.types else columns.cast(pa.schema(list(zip(names, types, strict=True))))


def _is_number(kind: pa.DataType) -> bool:
    """Return whether missing values of a column are no missing texts."""
    # Primitive: numbers, truth values, dates and times. Null: a column without values.
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))


def _columns(counts: list[int], group: Callable[[int], pa.Table | pa.RecordBatch]) -> Table:
    ends = list(accumulate(counts))

    def rows(indexes: Sequence[int]) -> Iterator[Row]:
        for number, wanted in groupby(indexes, lambda index: bisect_right(ends, index)):
            inside = [index - (ends[number] - counts[number]) for index in wanted]
            table = group(number)
            gaps = [field.name for field in table.schema if table.column(field.name).null_count]
            numbers = [name for name in gaps if _is_number(table.schema.field(name).type)]
            for row in table.take(inside).to_pylist():
                yield row | {name: math.nan for name in numbers if row[name] is None}

    return Table(sum(counts), rows)
