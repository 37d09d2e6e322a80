"""Text files and tables, plain or gzipped, row by row, with errors that name file, line and what to do."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from multicse.data import limits
from multicse.data.errors import DataError, did_you_mean


def read_lines(path: Path, *, blank: bool = False, latin: bool = False) -> Iterator[tuple[int, str]]:
    """Lines of a UTF-8 file (``.gz``: compressed) with their numbers from 1, without line ends and byte order mark.

    Only line feeds end a line, since sentences hold other Unicode separators. Blank lines are left out unless `blank` is
    set. With `latin` a file that is not UTF-8 is read as latin-1.

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
    path: Path, columns: Sequence[str], either: Sequence[str] = (), *, delimiter: str = "\t", quoted: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a table (``.gz``: compressed) whose first line names the columns, with their line numbers.

    Empty lines are left out.

    Args:
        path: the file, UTF-8.
        columns: must be there, each once, in any order; further columns are kept.
        either: one or more of these must be there as well.
        delimiter: what stands between two cells.
        quoted: whether cells may stand in quotation marks (and hold delimiters and line ends); else those are text.

    Raises:
        DataError: as `read_lines`, an empty file, a header that lacks a column, a row of another length than the header.
    """
    rows = _quoted(path, delimiter) if quoted else _unquoted(path, delimiter)
    number, header = next(rows, (0, []))
    if not number:
        raise DataError(f"{path} is empty; its first line names the columns, among them {_list([*columns, *either])}")
    wanted = [*columns, *([column for column in header if column in either] or either[:1])]
    for column in wanted:
        if column not in header:
            near = did_you_mean(column, set(header) - {*columns, *either})
            raise DataError(f"{path}, line {number}: no column {column!r}.{near} It has the columns {_list(header)}")
        if header.count(column) > 1:
            raise DataError(f"{path}, line {number}: two columns are called {column!r}; rename one")
    for number, cells in rows:
        if len(cells) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(cells)} cells under {len(header)} columns, parted by {delimiter!r}; quotation "
                f"marks are read as {'quoting' if quoted else 'text'}"
            )
        yield number, dict(zip(header, cells, strict=True))


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _unquoted(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in read_lines(path, blank=True):
        if line.strip(" "):  # cells may all be empty: tabs are no blank line
            yield number, line.split(delimiter)


def _quoted(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(limits.LINE)  # a text may be longer than csv's 128 kB
    reader = csv.reader((line for _, line in _whole_lines(path)), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; quotation marks are read as quoting") from error


def _whole_lines(path: Path, latin: bool = False) -> Iterator[tuple[int, str]]:
    """Lines with their ends and numbers."""
    if path.is_dir():
        raise DataError(f"{path} is a folder, a file is needed")
    if not path.is_file():
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no file {path}.{did_you_mean(path.name, beside)}")
    encoding = "latin-1" if latin and not _is_utf8(path) else "utf-8"
    for number, content in _raw(path):
        try:
            yield number, content.decode("utf-8-sig" if number == 1 and encoding == "utf-8" else encoding)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise DataError(f"{path}, line {number}: byte {byte:#04x} is not UTF-8; save the file as UTF-8") from error


def _raw(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            # Not by iteration: a line may be as long as a small gzip file makes it.
            for number, line in enumerate(iter(partial(file.readline, limits.LINE + 1), b""), 1):
                if len(line) > limits.LINE:
                    raise DataError(f"{path}, line {number} has {limits.over('LINE', 'more bytes', limits.LINE)}")
                yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read after line {number}: {error}; it is not a complete gzip file, so fetch it again, or "
            "compress it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _is_utf8(path: Path) -> bool:
    try:
        for _, line in _raw(path):
            line.decode()
    except UnicodeDecodeError:
        return False
    return True
