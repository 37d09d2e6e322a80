"""Rows of tables by number, as samples: Parquet, Arrow, JSON lines, CSV, TSV and texts with one sentence per line.

The columns `txt`, `cls` and `json` of a row are the fields with these names; a column of images or audio clips is the field
`jpg`, `wav`, ...; all other columns are entries of the field `json`. What a column is, is decided once for all rows of a
table (`Columns`): a row without a value is a row with a missing value. Parquet is read by row groups, Arrow is mapped into
memory. Text tables are packed into a Parquet file in the cache folder on first use, and again when the file has changed.
"""

from __future__ import annotations

import contextlib
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, partial
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import pyarrow as pa
import pyarrow.compute as pc
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

_COLUMNS = "multicse.columns"  # metadata of a packed text table: JSON map of its columns to their kinds
_BLANK = "multicse.blank"  # the same: `Table.blank`

Row = dict[str, Any]
Kind = Literal["text", "bytes", "file", "value", "other", "none"]
"""Values of a column: texts; bytes that are texts or unknown; files of images or audio; numbers, dates and other values that
can be written as texts; lists, maps and truth values; nothing."""
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


class Table(NamedTuple):
    """File with rows that are read by number."""

    rows: int
    read: Callable[[Sequence[int]], Iterator[Row]]
    """Yields the rows of these numbers, which ascend."""
    columns: Columns
    blank: tuple[int, int] = (0, 0)
    """Number of blank lines in a text table, which are not rows, and the number of the first."""


def scan(url: str) -> tuple[int, int, tuple[str, ...]]:
    """Return the number of rows of a table, its bytes, and the names of its columns and fields.

    Call it through `readable`, which converts errors that are not a DataError.
    """
    table = _open(url)
    fs, path = filesystem(url)
    return table.rows, int(fs.size(path) or 0), table.columns.shown


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
        try:
            row = _complete(next(rows), table.columns, options)
            if (value := row.get(KEY, key)) in (None, ""):
                yield key, f"its {KEY} is empty"
                continue
            key = f"{value:08d}" if isinstance(value, int) else str(value)
            yield key, _fields_of(row, table.columns)
        except DecodeError as error:
            yield key, f"sample {key!r}: {error}"


def rows(url: str, first: int = 0, stop: int | None = None) -> Iterator[tuple[int, Row]]:
    """Yield number and columns, with dotted names, of the rows from `first` up to `stop` (None: all) of a table."""
    end, options = count(url) if stop is None else stop, options_of(url)
    for start in range(first, end, READ_AT_ONCE):
        numbers = range(start, min(end, start + READ_AT_ONCE))
        table, found = readable(url, lambda: ((table := _open(url)), list(table.read(numbers))))  # noqa: B023  # at once
        for number, row in zip(numbers, found, strict=True):
            try:
                yield number, _complete(row, table.columns, options)
            except DecodeError as error:
                raise DataError(f"{url}, row {number}: {error}") from None


def count(url: str) -> int:
    """Return the number of rows of a table. Raises DataError."""
    return readable(url, lambda: _open(url).rows)


def blank(url: str) -> tuple[int, int]:
    """Return the number of blank lines in a table, and the number of the first. Raises DataError."""
    return readable(url, lambda: _open(url).blank)


def _fields_of(row: Row, columns: Columns) -> dict[str, bytes]:
    """Return the fields of a row of `_complete`, as in a shard; a missing file is empty. Raises DecodeError."""
    fields: dict[str, bytes] = {}
    record: Row = {}
    for name, value in row.items():
        if name == KEY:
            continue
        if name in columns.files:
            field = columns.files[name]
            if isinstance(value, bytes) and value:
                fields[_kind(value) or field if field in FILES else field] = value
                continue
            fields.setdefault(field, b"")
            if not value:
                continue
        if isinstance(value, bytes):
            fields[name] = value
        elif name in ("txt", "cls", "json"):
            if not isinstance(value, str):
                value = _json(value) if name == "json" else text_of(value, repr(name))
            fields[name] = value.encode("utf-8", "surrogatepass")
        else:
            record[name] = [value] if name == "captions" and isinstance(value, str) else value
    if "txt" not in fields and columns.text in record and "json" not in fields:
        value = record[columns.text]
        with contextlib.suppress(DecodeError):  # a stream that reads this field refuses the row, others do not need it
            fields["txt"] = (value if isinstance(value, str) else text_of(value, repr(columns.text))).encode(
                "utf-8", "surrogatepass"
            )
        if columns.captions:
            caption = record["caption"]
            record["captions"] = [caption] if isinstance(caption, str) else caption
    if columns.files and "txt" in fields:  # one text; in a tar, the lines of a caption file are several
        fields["txt"] = b" ".join(fields["txt"].split())
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
        if isinstance(value, dict) and set(value) == {"bytes", "path"}:
            value = value["bytes"] or value["path"]
        if isinstance(value, Unreadable):
            raise DecodeError(f"column {before + name!r}: {value.reason}")
        nested = flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: _present(value)}
        if twice := found.keys() & nested.keys():
            raise DecodeError(f"two columns have the name {min(twice)!r}; rename one")
        found |= nested
    return found


def _present(value: Any) -> Any:
    return None if isinstance(value, float | Decimal) and value != value else value


def _complete(row: Row, columns: Columns, options: Mapping[str, str]) -> Row:
    """Return a flat row with all columns of its table, renamed by its options. Bytes outside `files` are texts if UTF-8.

    Some programs do not mark texts as such. Raises DecodeError as `flat`.
    """
    found = _renamed(flat(row), options)
    found = dict.fromkeys(columns.names) | {name: found[name] for name in found if found[name] is not None}
    for name, value in found.items():
        if isinstance(value, bytes) and name not in columns.files:
            with contextlib.suppress(UnicodeDecodeError):
                found[name] = value.decode("utf-8-sig")
    return found


def _renamed(named: Mapping[str, _T], options: Mapping[str, str]) -> dict[str, _T]:
    """Return values by name, with names replaced by options ``#FIELD=COLUMN``."""
    found = dict(named)
    for field, column in options.items():
        if column in named and field != "separator":
            found.pop(column, None)
            found[field] = named[column]
    return found


# --------------------------------------------------------------------------------------------------------- kinds of columns


def _columns_of(url: str, kinds: Mapping[str, tuple[Kind, str]]) -> Columns:
    """Decide what the columns of a table are.

    Args:
        url: Table.
        kinds: Kind of each column by its dotted name, and of files the kind of the first one, otherwise "".

    Raises:
        DataError: If an option names a column that does not exist, or two columns contain images, or audio clips.
    """
    options = options_of(url)
    for field, column in options.items():
        if field != "separator" and column not in kinds:
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
    captions = "caption" in entries and text != "caption" and "captions" not in entries
    shown = {*kinds} - {KEY} - {*files} | {*files.values()}
    if text is not None and "json" not in kinds and entries[text] != "other":
        shown.add("txt")
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


def _arrow_columns(url: str, schema: pa.Schema, chunks: Callable[[str], Iterable[Any]]) -> Columns:
    """Decide what the columns of an Arrow schema are. Columns of bytes are decided by their first values.

    Args:
        url: Table.
        schema: Names and types.
        chunks: Function that returns the arrays of a column.
    """
    kinds: dict[str, tuple[Kind, str]] = {}
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
    return _columns_of(url, kinds)


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
        kinds: dict[str, Counter[Kind]] = {}
        with pq.ParquetWriter(path, pa.schema({"row": pa.string()}), compression="zstd") as out:

            def flush() -> None:
                with limits.writing(place):
                    out.write_table(pa.table({"row": pa.array(group, pa.string())}))
                group.clear()

            for _, row in read_table(file, separator=separator, left_out=blank):
                with contextlib.suppress(DecodeError):  # a bad sample
                    for name, value in flat(row).items():
                        if name in kinds or len(kinds) < limits.MEMBERS:
                            kinds.setdefault(name, Counter())[_kind_of_value(value)] += 1
                group.append(json.dumps(row))
                letters += len(group[-1])
                if letters >= GROUP_LETTERS:
                    flush()
                    letters = 0
            flush()
            columns = json.dumps(_kinds_of_counts(kinds))
            out.add_key_value_metadata({_BLANK: f"{blank.lines} {blank.first}", _COLUMNS: columns})

    stamp = f"6 {split_options(url)[0]} {checksum} {separator}"  # 6: how rows are read, and the form of the file
    place = limits.cache_path("tables", stamp).with_suffix(".parquet")

    def read(path: Path) -> Table:
        table = readable(str(path), partial(_parquet, str(path)))
        metadata = pq.read_metadata(path).metadata
        lines, first = metadata[_BLANK.encode()].split()
        columns = _columns_of(url, {name: (kind, "") for name, kind in json.loads(metadata[_COLUMNS.encode()]).items()})

        def rows(indexes: Sequence[int]) -> Iterator[Row]:
            return (json.loads(packed["row"]) for packed in table.read(indexes))

        return Table(table.rows, rows, columns, (int(lines), int(first)))

    return limits.cached(place, lambda path: readable(url, partial(write, path)), read)


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

    columns = _arrow_columns(url, schema, chunks)
    return Table(about.num_rows, _reader([group_.num_rows for group_ in groups], group), columns)


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
    columns = _arrow_columns(url, table.schema, lambda name: (batch.column(name) for batch in batches))
    read = _reader([len(batch) for batch in batches], lru_cache(lambda number: _validated(batches[number])))
    return Table(len(table), read, columns)


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
            # One by one: pyarrow cannot take the values of views and run ends.
            columns = [[_value(column, place) for place in inside] for column in table.columns]
            for values in zip(*columns, strict=True):
                yield dict(zip(table.schema.names, values, strict=True))

    return rows
