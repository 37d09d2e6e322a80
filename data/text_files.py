"""Text files and tables, plain or gzipped, row by row, with errors that name file, line and what to do."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from multicse.data import limits
from multicse.data.errors import DataError, did_you_mean
from multicse.data.shard_urls import filesystem, table_kind

SEPARATORS = ",;\t|"


def read_table(
    path: Path | str, columns: Sequence[str] = (), *, separator: str | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and columns of every row of a text, CSV, TSV or JSON-lines file, from its beginning.

    Args:
        path: File, or URL of one, whose ending says which it is. A text has the column `txt`.
        columns: Columns that a CSV or TSV must have. If empty, none of its columns may have the name of another.
        separator: Text between cells. Default: in a TSV a tab, in a CSV the usual one that its first line has most often.
            Cells of a CSV may be in quotation marks.

    Raises:
        DataError: As `read_rows` and `read_json`.
        OSError: If the store of a URL fails.
    """
    kind = table_kind(str(path))
    if kind == "txt":
        return ((number, {"txt": line.strip()}) for number, line in read_lines(path))
    if kind == "jsonl":
        return read_json(path)
    if kind == "csv" and separator is None:
        _, first = next(read_lines(path), (0, ""))
        separator = max(SEPARATORS, key=first.count)
    return read_rows(path, columns, delimiter=separator or "\t", quoted=kind == "csv")


def read_json(path: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of every line of a JSON-lines file (``.gz``: compressed).

    Raises:
        DataError: As `read_lines`, and if a line is not an object of JSON or contains half a character.
    """
    for number, line in read_lines(path):
        try:
            row = json.loads(line)
            if "\\u" in line:
                json.dumps(row, ensure_ascii=False).encode()  # half a character is JSON, and no text
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: no JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(f'{path}, line {number}: a row is an object like {{"file": ...}}, not {type(row).__name__}')
        yield number, row


def read_lines(path: Path | str, *, blank: bool = False, latin: bool = False) -> Iterator[tuple[int, str]]:
    """Lines of a UTF-8 file (``.gz``: compressed) with their numbers from 1, without line ends and byte order mark.

    `path` may be a URL. Only line feeds end a line, since sentences hold other Unicode separators. Blank lines are left out
    unless `blank` is set. With `latin` a file that is not UTF-8 is read as latin-1.

    Raises:
        DataError: a path that is no file, bytes that are not UTF-8, a gzip file that is cut or damaged, a line of more than
            `limits.LINE` bytes.
    """
    for number, line in _whole_lines(path, latin):
        if blank or line.strip():
            yield number, line.rstrip("\r\n")


def read_cells(path: Path, count: int, *, more: bool = False) -> Iterator[tuple[int, list[str]]]:
    """The cells of a table of tabs whose first line names no columns, with their line numbers.

    Raises DataError, as `read_lines`, and for a line that has not `count` cells; with `more` it may have more.
    """
    for number, line in read_lines(path):
        cells = line.split("\t")
        if len(cells) < count or (len(cells) > count and not more):
            wanted = f"at least {count}" if more else count
            raise DataError(f"{path}, line {number}: {len(cells)} tab-separated cells; {wanted} are needed")
        yield number, cells


def read_rows(
    path: Path | str, columns: Sequence[str], either: Sequence[str] = (), *, delimiter: str = "\t", quoted: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a table (``.gz``: compressed) whose first line names the columns, with their line numbers.

    Empty lines are left out.

    Args:
        path: the file, UTF-8, or its URL.
        columns: must be there, each once, in any order; further columns are kept. If empty, every column must be there once.
        either: one or more of these must be there as well.
        delimiter: what stands between two cells.
        quoted: whether cells may stand in quotation marks (and hold delimiters and line ends); else those are text.

    Raises:
        DataError: as `read_lines`, an empty file, a header that lacks a column, a row of another length than the header.
    """
    if quoted:
        rows = _quoted(path, delimiter)
    else:  # cells may all be empty: tabs are no blank line
        rows = ((number, line.split(delimiter)) for number, line in read_lines(path, blank=True) if line.strip(" "))
    number, header = next(rows, (0, []))
    if not number:
        among = f", among them {_list([*columns, *either])}" if columns or either else ""
        raise DataError(f"{path} is empty; its first line names the columns{among}")
    wanted = [*columns, *([column for column in header if column in either] or either[:1])]
    for column in wanted or header:
        if column not in header:
            near = did_you_mean(column, set(header) - {*columns, *either})
            raise DataError(f"{path}, line {number}: no column {column!r}.{near} It has the columns {_list(header)}")
        if header.count(column) > 1:
            raise DataError(f"{path}, line {number}: two columns have the name {column!r}; rename one")
    for number, cells in rows:
        if len(cells) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(cells)} cells under {len(header)} columns, parted by {delimiter!r}; quotation "
                f"marks are read as {'quoting' if quoted else 'text'}"
            )
        yield number, dict(zip(header, cells, strict=True))


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _quoted(path: Path | str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(limits.LINE)  # a text may be longer than csv's 128 kB
    reader = csv.reader((line for _, line in _whole_lines(path)), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if cells and not (len(cells) == 1 and cells[0].isspace()):  # a blank line
                yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; quotation marks are read as quoting") from error


def _whole_lines(path: Path | str, latin: bool = False) -> Iterator[tuple[int, str]]:
    """Lines with their ends and numbers."""
    if isinstance(path, Path) and path.is_dir():
        raise DataError(f"{path} is a folder, a file is needed")
    if isinstance(path, Path) and not path.is_file():
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no file {path}.{did_you_mean(path.name, beside)}")
    encoding = "latin-1" if latin and not _is_utf8(path) else "utf-8"
    for number, content in _raw(path):
        try:
            yield number, content.decode("utf-8-sig" if number == 1 and encoding == "utf-8" else encoding)
        except UnicodeDecodeError as error:
            if number == 1 and content.startswith(b"\x1f\x8b"):
                raise DataError(f"{path} is compressed; add .gz to its name") from error
            byte = error.object[error.start]
            raise DataError(f"{path}, line {number}: byte {byte:#04x} is not UTF-8; save the file as UTF-8") from error


def _raw(path: Path | str) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        if isinstance(path, Path):
            file: io.BufferedIOBase = path.open("rb")
            place = path.name
        else:
            fs, place = filesystem(path)
            file = io.BufferedReader(fs.open(place, "rb"), 2**20)
        with file, gzip.GzipFile(fileobj=file) if place.partition("?")[0].endswith(".gz") else file as lines:
            # Not by iteration: a line may be as long as a small gzip file makes it.
            for number, line in enumerate(iter(partial(lines.readline, limits.LINE + 1), b""), 1):
                if len(line) > limits.LINE:
                    raise DataError(f"{path}, line {number} has {limits.over('LINE', 'more bytes', limits.LINE)}")
                yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read after line {number}: {error}; it is not a complete gzip file, so fetch it again, or "
            "compress it again"
        ) from error
    except OSError as error:
        if not isinstance(path, Path):
            raise  # of a store: `tables.readable` tries the whole read again
        raise DataError(f"{path} cannot be read: {error}") from error


def _is_utf8(path: Path | str) -> bool:
    try:
        for _, line in _raw(path):
            line.decode()
    except UnicodeDecodeError:
        return False
    return True
