"""Rows of tables by number, as samples: Parquet, Arrow, JSON lines, CSV, TSV and texts with one sentence per line.

The columns of a row are the fields of its sample, with their values; a column of images or audio clips is the field `jpg`,
`wav`, ..., and a column of texts is also the field `txt`. What a column is, is decided once for all rows of a table
(`Columns`): a row without a value is a row with a missing value. Parquet is read by row groups, Arrow is mapped into memory.
Text tables are packed into a Parquet file in the cache folder on first use, and again when the file has changed.
"""

from __future__ import annotations

import contextlib
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, lru_cache, partial
from itertools import accumulate, chain, groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from multicse.data import limits
from multicse.data.errors import DataError, DecodeError
from multicse.data.remote import call_storage
from multicse.data.shard_urls import DIALECT, filesystem, options_of, split_options, table_kind
from multicse.data.shard_urls import checksum as checksum_of
from multicse.data.text_files import Blank, dialect_of, read_table

KEY = "__key__"
"""Column with the name of the sample. Default: the number of the row, from 0."""
TEXTS = ("text", "sentence", "caption")
"""Columns that replace a missing column `txt`: the first existing column, otherwise the only text column of the table."""
IMAGES = ("jpg", "jpeg", "png", "webp")
"""Fields of a sample that contain an image, in the order of preference."""
SOUNDS = ("wav", "flac", "ogg", "mp3")
"""Fields of a sample that contain an audio clip, in the order of preference."""
FILES = (*IMAGES, *SOUNDS)
MAGIC = {
    "jpg": rb"\xff\xd8\xff",
    "png": rb"\x89PNG",
    "webp": rb"RIFF(?![ -~]{4})....WEBP",
    "wav": rb"(?:RIFF|RIFX|RF64)(?![ -~]{4})....WAVE",
    "flac": rb"fLaC[\0\x80]",
    "ogg": rb"OggS\0",
    "mp3": rb"ID3[\2-\4]|\xff[\xe2-\xfd]",
}
"""First bytes of the files of a kind. No text starts with them, in UTF-8 or UTF-16."""
GROUP_LETTERS = 2**20
"""Characters in a row group of a packed text table: some thousand sentences."""
READ_AT_ONCE = 1024
"""Samples or rows that are read together, and read again together if a store fails."""

FIRST, LOOKED = 16, 2**16
"""Values of a column of bytes that show whether it contains files or texts, and rows with a value that are searched for
them."""
NAMES = 512
"""Columns of JSON lines, the most frequent ones, that every row has; there are more if keys of objects are data."""

_COLUMNS = "multicse.columns"  # metadata of packed JSON lines: JSON map of their columns to their kinds
_BLANK = "multicse.blank"  # metadata of a packed text table: `Table.blank`
_JSON = "multicse.json"  # column of packed JSON lines

Row = dict[str, Any]
Kind = Literal["text", "bytes", "file", "value", "other", "none"]
"""Values of a column: texts; bytes that are texts or unknown; files of images or audio; numbers, dates and other values that
can be written as texts; lists, maps and truth values; nothing."""
Kinds = dict[str, tuple[Kind, str]]
"""Kind of each column by its dotted name, and of files the kind of the first one, otherwise ""."""
_T = TypeVar("_T")
_Arrays = TypeVar("_Arrays", pa.Table, pa.RecordBatch)


class Columns(NamedTuple):
    """What the columns of a table are, for all rows."""

    names: tuple[str, ...]
    """Columns, with dotted names and after the options of the table."""
    text: str | None
    """Column that is the field `txt`."""
    captions: bool
    """The captions are in the column `caption`, and `text` is another column."""
    files: Mapping[str, str]
    """Field of each column of images or audio clips: the kind of its first file; of columns that are not used, its name."""
    shown: tuple[str, ...]
    """Columns and fields, for messages and checks."""


class Unreadable(NamedTuple):
    """Value that pyarrow cannot convert."""

    reason: str


@dataclass(frozen=True)
class Table:
    """The form of a file with rows."""

    url: str
    samples: int
    bytes: int
    fetch: Callable[[Sequence[int]], Iterator[Row]]
    """Yields the rows of these numbers, as they are in the file."""
    kinds: Kinds
    blank: tuple[int, int] = (0, 0)
    """Number of blank lines in a text table, which are not rows, and the number of the first."""

    @cached_property
    def columns(self) -> Columns:
        """Decide what the columns are. Raises DataError."""
        return _columns_of(self.url, self.kinds)

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[str, Row | str]]:
        """Yield key and fields of rows; of a row that cannot be used, the reason. Ascending numbers are read fastest."""
        rows, options = self.fetch([number for number in numbers if number < self.samples]), options_of(self.url)
        for number in numbers:
            key = f"{number:08d}"
            if number >= self.samples:
                yield key, f"the file has {self.samples} rows only"
                continue
            try:
                row = _complete(next(rows), self.columns, options)
                if (value := row.pop(KEY, key)) in (None, ""):
                    yield key, f"its {KEY} is empty"
                    continue
                key = f"{value:08d}" if isinstance(value, int) else str(value)
                yield key, _fields_of(row, self.columns)
            except DecodeError as error:
                yield key, f"sample {key!r}: {error}"


def table(url: str) -> Table:
    """Open a table. Raises DataError."""
    return readable(url, lambda: opened(url, checksum_of(url)))


def rows(url: str, first: int = 0, stop: int | None = None) -> Iterator[tuple[int, Row]]:
    """Yield number and columns, with dotted names, of the rows from `first` up to `stop` (None: all) of a table."""
    end, options = table(url).samples if stop is None else stop, options_of(url)
    for start in range(first, end, READ_AT_ONCE):
        numbers = range(start, min(end, start + READ_AT_ONCE))
        found, columns = readable(url, lambda: ([*table(url).fetch(numbers)], table(url).columns))  # noqa: B023  # at once
        for number, row in zip(numbers, found, strict=True):
            try:
                yield number, _complete(row, columns, options)
            except DecodeError as error:
                raise DataError(f"{url}, row {number}: {error}") from None


def _fields_of(row: Row, columns: Columns) -> Row:
    """Return the fields of a row of `_complete`: its columns, files under the name of their kind, and the text as `txt`."""
    for name, value in {name: row.pop(name) for name in columns.files}.items():
        field = columns.files[name]
        if value and isinstance(value, bytes):
            row[_kind(value) or field if field in FILES else field] = value
        else:
            row.setdefault(field, b"")
            if value:  # the name of a file
                row[name] = value
    if columns.text is not None:
        row["txt"] = row[columns.text]
    if columns.captions:
        row["captions"] = row["caption"]
    return row


def _kind(value: bytes) -> str | None:
    """Return the kind of an image or audio file; None for other bytes."""
    return next((kind for kind, start in MAGIC.items() if re.match(start, value, re.DOTALL)), None)


def flat(row: Row, before: str = "") -> Row:
    """Return a row with dotted names for nested columns. A missing value, also NaN, is None.

    Images and audio clips of Hugging Face, which have `bytes` and `path`, are their bytes, otherwise their path.

    Args:
        row: Columns by name.
        before: Prefix of the names.

    Raises:
        DecodeError: If two columns have the same dotted name, or pyarrow cannot convert a value.
    """
    found: Row = {}
    for name, value in row.items():
        name = before + name
        if isinstance(value, dict) and set(value) == {"bytes", "path"}:
            value = value["bytes"] or value["path"]
        if isinstance(value, Unreadable):
            raise DecodeError(f"column {name!r}: {value.reason}")
        if isinstance(value, float | Decimal) and value != value:
            value = None
        leaves = flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
        if not found.keys().isdisjoint(leaves):
            raise DecodeError(f"two columns have the name {min(found.keys() & leaves)!r}; rename one")
        found.update(leaves)
    return found


def _complete(row: Row, columns: Columns, options: Mapping[str, str]) -> Row:
    """Return a flat row with all columns of its table, renamed by its options. Bytes outside `files` are texts if UTF-8.

    Some programs do not mark texts as such. Raises DecodeError as `flat`.
    """
    found = _renamed(flat(row), options) if options else flat(row)
    if tuple(found) != columns.names:  # rows of JSON lines, and missing structs
        found = dict.fromkeys(columns.names) | {name: found[name] for name in found if found[name] is not None}
    for name in [name for name, value in found.items() if isinstance(value, bytes) and name not in columns.files]:
        with contextlib.suppress(UnicodeDecodeError):
            found[name] = found[name].decode("utf-8-sig")
    return found


def _renamed(named: Mapping[str, _T], options: Mapping[str, str]) -> dict[str, _T]:
    """Return values by name, with names replaced by options ``#FIELD=COLUMN``."""
    found = dict(named)
    for field, column in options.items():
        if column in named and field not in DIALECT:
            found.pop(column, None)
            found[field] = named[column]
    return found


# --------------------------------------------------------------------------------------------------------- kinds of columns


def _columns_of(url: str, kinds: Kinds) -> Columns:
    """Decide what the columns of a table are.

    Args:
        url: Table.
        kinds: Kinds of its columns.

    Raises:
        DataError: If an option names a column that does not exist, or two columns contain images, or audio clips.
    """
    options = options_of(url)
    for field, column in options.items():
        if field not in DIALECT and column not in kinds:
            raise DataError(f"{url}: #{field}={column}: no such column; it has {', '.join(kinds)}")
    kinds = _renamed(kinds, options)
    named = {name for name, (kind, _) in kinds.items() if kind in ("bytes", "file", "none") and name in FILES}
    files = {name: name for name, (kind, _) in kinds.items() if kind == "file" or name in named}
    for what, fields in (("images", IMAGES), ("audio clips", SOUNDS)):
        if named.isdisjoint(fields):
            found = [name for name in files if kinds[name][1] in fields]
            if len(found) > 1:
                raise DataError(
                    f"{url}: the columns {' and '.join(found)} contain {what}; name the one to read by "
                    f"#{kinds[found[0]][1]}={found[0]} after the table"
                )
            files |= {name: kinds[name][1] for name in found}
    entries = {name: kind for name, (kind, _) in kinds.items() if name not in (KEY, "txt", "cls", "json", *files)}
    texts = [name for name, kind in entries.items() if kind in ("text", "bytes") and name != "captions"]
    text = next((name for name in TEXTS if name in entries), texts[0] if len(texts) == 1 else None)
    if text is None or "txt" in kinds or "json" in kinds or entries[text] == "other":
        text = None
    captions = "caption" in entries and text not in (None, "caption") and "captions" not in entries
    shown = {*kinds} - {KEY} - {*files} | {*files.values()} | ({"txt"} if text else set())
    return Columns(tuple(kinds), text, captions, files, tuple(sorted(shown)))


def _kind_of_value(value: Any) -> Kind:
    if value is None:
        return "none"
    return "text" if isinstance(value, str) else "other" if isinstance(value, bool | list | tuple | dict) else "value"


def _kind_of_type(kind: pa.DataType) -> Kind:
    """Return the kind of the values of a type of Arrow; "none" for bytes, which may be files or texts."""
    types = pa.types
    if any(of(kind) for of in (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)):
        return "none"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    return "other" if types.is_boolean(kind) or types.is_nested(kind) or types.is_union(kind) else "value"


def _leaves(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the dotted names and types of a column that `flat` makes of it."""
    while (inner := getattr(kind, "storage_type", None) or getattr(kind, "value_type", None)) and not pa.types.is_nested(
        kind
    ):
        kind = inner  # of an extension, a dictionary, run ends
    if not pa.types.is_struct(kind):
        yield name, kind
    elif {field.name for field in kind} == {"bytes", "path"}:
        yield name, pa.binary()
    else:
        for field in kind:
            yield from _leaves(f"{name}.{field.name}", field.type)


def _kinds_of_arrow(schema: pa.Schema, chunks: Callable[[str], Iterable[Any]]) -> Kinds:
    """Return the kinds of the columns of an Arrow schema. Columns of bytes are decided by their first values.

    Args:
        schema: Names and types.
        chunks: Function that returns the arrays of a column.
    """
    kinds: Kinds = {}
    for column in schema:
        leaves = {name: _kind_of_type(kind) for name, kind in _leaves(column.name, column.type)}
        if twice := kinds.keys() & leaves:
            raise pa.ArrowInvalid(f"two columns have the name {min(twice)!r}; rename one")
        kinds |= {name: (kind, "") for name, kind in leaves.items()}
        unknown = {name for name, kind in leaves.items() if kind == "none" and name not in ("txt", "captions", *TEXTS)}
        seen = Counter[str]()
        for value in islice(_values(chunks(column.name)), LOOKED) if unknown else ():
            for name, content in flat({column.name: value}).items():
                if name in unknown and content and not isinstance(content, str):  # a text: the path of a missing image
                    seen[name] += 1
                    if not isinstance(content, bytes):
                        kinds[name] = _kind_of_value(content), ""
                    elif kind := _kind(content):
                        kinds[name] = "file", kind
                    elif kinds[name][0] == "none":
                        kinds[name] = "bytes", ""
            unknown -= {name for name in unknown if kinds[name][0] not in ("none", "bytes") or seen[name] == FIRST}
            if not unknown:
                break
    return kinds


def _values(chunks: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of arrays that are not null and that pyarrow can convert."""
    for chunk in chunks:
        chunk.validate(full=True)
        for place in pc.indices_nonzero(chunk.is_valid()).to_pylist():
            if not isinstance(value := _value(chunk, place), Unreadable):
                yield value


def _value(column: Any, place: int) -> Any:
    """Return a value, converted like `to_pylist`, or why it cannot be converted."""
    try:
        return column[place].as_py()
    except Exception as error:  # of dates beyond Python's, unknown time zones, fields of equal names, ...
        return Unreadable(f"a value of the type {column.type} cannot be read ({error})")


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


@lru_cache(maxsize=16)
def opened(url: str, checksum: str) -> Table:
    """Open the table with this checksum of its size and time. Errors that are not a DataError are converted by `table`."""
    kind = table_kind(url)
    return _parquet(url) if kind == "parquet" else _arrow(url) if kind == "arrow" else _packed(url, checksum)


def _packed(url: str, checksum: str) -> Table:
    """Return a text table from its Parquet file in the cache, which is made if it does not exist.

    Cells of CSV, TSV and text are columns of texts; a row of JSON lines may contain anything, and stays JSON.
    """
    dialect = dialect_of(url)
    fs, source = filesystem(url)
    file = Path(source) if isinstance(fs, LocalFileSystem) else url
    as_json = table_kind(url) == "jsonl"

    def write(path: Path) -> None:
        blank = Blank()
        counts: dict[str, Counter[Kind]] = {}
        rows = (row for _, row in read_table(file, **dialect, left_out=blank))
        if as_json:
            rows = ({_JSON: json.dumps(_counted(row, counts))} for row in rows)
        first = list(islice(rows, 1))
        schema = pa.schema([(name, pa.string()) for row in first for name in row])
        with pq.ParquetWriter(path, schema, compression="zstd") as out:
            for group in _groups(chain(first, rows)):
                with limits.writing(place):
                    out.write_table(pa.Table.from_pylist(group, schema))
            kinds = json.dumps(_kinds_of_counts(counts))
            out.add_key_value_metadata({_BLANK: f"{blank.lines} {blank.first}", _COLUMNS: kinds})

    stamp = f"8 {split_options(url)[0]} {checksum} {dialect}"  # 8: how rows are read, and the form of the file
    place = limits.cache_path("tables", stamp).with_suffix(".parquet")

    def read(path: Path) -> Table:
        table, metadata = readable(str(path), partial(_parquet, str(path))), pq.read_metadata(path).metadata
        lines, first = metadata[_BLANK.encode()].split()
        table = replace(table, url=url, bytes=int(fs.size(source) or 0), blank=(int(lines), int(first)))
        if not as_json:
            return table
        kinds = {name: (kind, "") for name, kind in json.loads(metadata[_COLUMNS.encode()]).items()}
        return replace(table, kinds=kinds, fetch=lambda numbers: (json.loads(row[_JSON]) for row in table.fetch(numbers)))

    return limits.cached(place, lambda path: readable(url, partial(write, path)), read)


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows of texts in groups of about `GROUP_LETTERS`."""
    group: list[Row] = []
    letters = 0
    for row in rows:
        group.append(row)
        letters += sum(map(len, row.values()))
        if letters >= GROUP_LETTERS:
            yield group
            group, letters = [], 0
    if group:
        yield group


def _counted(row: Row, counts: dict[str, Counter[Kind]]) -> Row:
    """Return a row of JSON lines after its kinds of values are counted by dotted name."""
    with contextlib.suppress(DecodeError):  # a bad sample
        for name, value in flat(row).items():
            if name in counts or len(counts) < limits.MEMBERS:
                counts.setdefault(name, Counter())[_kind_of_value(value)] += 1
    return row


def _kinds_of_counts(counts: Mapping[str, Counter[Kind]]) -> dict[str, Kind]:
    """Return the kind of each column, the most frequent `NAMES` ones, from the counts of the kinds of its values."""
    parents = {name[:dot] for name in counts for dot, letter in enumerate(name) if letter == "."}
    found: dict[str, Kind] = {}
    for name in sorted(counts, key=lambda name: -counts[name].total())[:NAMES]:
        if {*counts[name]} != {"none"} or name not in parents:  # no column, but a missing object
            found[name] = next(kind for kind in get_args(Kind) if kind in counts[name])
    return {name: found[name] for name in counts if name in found}


def _parquet(url: str) -> Table:
    fs, path = filesystem(url)
    with fs.open(path, "rb") as file:
        opened = pq.ParquetFile(file)
        about, schema = opened.metadata, opened.schema_arrow
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    if large := [number for number, group in enumerate(groups) if group.total_byte_size > limits.GROUP]:
        size = limits.over("GROUP", groups[large[0]].total_byte_size, limits.GROUP)
        raise DataError(f"{url}: row group {large[0]} has {size} bytes; write it with smaller row groups, or pack it")

    @lru_cache(maxsize=1)  # the next window of a rank continues in it
    def group(number: int) -> pa.Table:
        with fs.open(path, "rb") as file:
            return _validated(pq.ParquetFile(file).read_row_group(number))

    def chunks(name: str) -> Iterator[pa.Array]:
        with fs.open(path, "rb") as file:
            for batch in pq.ParquetFile(file).iter_batches(4 * FIRST, columns=[name]):
                yield batch.column(name)

    read = _reader([group_.num_rows for group_ in groups], group)
    return Table(url, about.num_rows, int(fs.size(path) or 0), read, _kinds_of_arrow(schema, chunks))


def _arrow(url: str) -> Table:
    """Open Arrow's file format, or its stream format, which the library datasets writes."""
    fs, path = filesystem(url)
    local = isinstance(fs, LocalFileSystem)
    if not local and (size := fs.size(path)) and size > limits.GROUP:
        raise DataError(
            f"{url} has {limits.over('GROUP', size, limits.GROUP)} bytes; copy it to this machine, or convert it to Parquet"
        )
    source = pa.memory_map(path) if local else pa.BufferReader(fs.cat_file(path))
    if source.read(6) == b"ARROW1":
        table = pa.ipc.open_file(source).read_all()
    else:
        source.seek(0)
        table = pa.ipc.open_stream(source).read_all()
        if source.tell() < source.size():  # a stream ends with zeros
            raise DataError(f"{url} continues after the end of its stream at byte {source.tell()}: it is damaged") from None
    batches = table.to_batches()
    kinds = _kinds_of_arrow(table.schema, lambda name: (batch.column(name) for batch in batches))
    read = _reader([len(batch) for batch in batches], lru_cache(lambda number: _validated(batches[number])))
    return Table(url, len(table), int(fs.size(path) or 0), read, kinds)


def _validated(columns: _Arrays) -> _Arrays:
    """Return the columns. Values that pyarrow did not check (buffers, UTF-8) raise ArrowInvalid."""
    columns.validate(full=True)
    return columns


def _reader(
    counts: list[int], group: Callable[[int], pa.Table | pa.RecordBatch]
) -> Callable[[Sequence[int]], Iterator[Row]]:
    """Return a function that yields the rows of these numbers, from groups of rows, with the values of `to_pylist`."""
    ends = list(accumulate(counts))

    def rows(indexes: Sequence[int]) -> Iterator[Row]:
        for number, wanted in groupby(indexes, lambda index: bisect_right(ends, index)):
            inside = [index - (ends[number] - counts[number]) for index in wanted]
            table = group(number)
            names = table.schema.names
            for values in zip(*(_at(column, inside) for column in table.columns), strict=True):
                yield dict(zip(names, values, strict=True))

    return rows


def _at(column: Any, places: list[int]) -> list[Any]:
    """Return the values at these places: of neighbours together, which is faster. pyarrow cannot take views and run ends."""
    first, stop = min(places), max(places) + 1
    with contextlib.suppress(Exception):  # then `_value` finds the value that cannot be converted
        if stop - first <= 4 * len(places):
            values = column.slice(first, stop - first).to_pylist()
            return [values[place - first] for place in places]
    return [_value(column, place) for place in places]
