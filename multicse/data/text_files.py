"""Text files and tables, plain or gzipped, row by row, and their values as texts.

Errors of a file are DataErrors that name file, line and remedy; an OSError is an error of the store of a URL.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from multicse.data import limits
from multicse.data.errors import DataError, DecodeError, did_you_mean
from multicse.data.shard_urls import filesystem, is_gzipped, options_of, split_options, table_kind

SEPARATORS = ",;\t|"
_EXCEL = re.compile(r"sep=(.)\r?\n?")  # a first line that specifies the separator for Excel
_QUOTED = re.compile(r'(^|[,;\t|])"(?:[^"]|"")*"')
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # valid in JSON, not in UTF-8; as zero bytes, a sign of damage
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # decoded bytes that are not UTF-8
_QUOTE = " (if they quote, name it .csv, or add #quoted=yes to its name)"
_OTHER = {
    b"\x1f\x8b": "is compressed; add .gz to its name",
    b"BZh91AY&SY": "is compressed; decompress it (bunzip2)",
    b"\xfd7zXZ": "is compressed; decompress it (unxz)",
    b"\x28\xb5\x2f\xfd": "is compressed; decompress it (unzstd)",
    b"PK\x03\x04": "is a ZIP archive or an Excel workbook; unpack it, or save its sheet as CSV UTF-8",
    b"PAR1": "is a Parquet file; name it .parquet",
}
"""First bytes of files that are neither texts nor text tables, and the remedy."""
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def decoded(content: bytes, place: object) -> str:
    """Decode a text file that another program may have written.

    Args:
        content: UTF-8 with or without a byte order mark, or UTF-16 with one.
        place: Name of the file for the error.

    Returns:
        The text without the mark, with line feeds as line ends.

    Raises:
        DataError: If it is not such a text.
    """
    encoding = "utf-16" if content.startswith(UTF16) else "utf-8-sig"
    try:
        return re.sub(r"\r\n?", "\n", content.decode(encoding))
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is not UTF-8 ({error}); save it as UTF-8") from None


def read_text(path: Path | str) -> str:
    """Read a small text file as `decoded` does; a file that cannot be read is an OSError."""
    return decoded(Path(path).expanduser().read_bytes(), path)


@dataclass
class Blank:
    """Blank lines of a file: how many, and the number of the first."""

    lines: int = 0
    first: int = 0

    def add(self, number: int) -> None:
        """Count the line of this number."""
        self.first = self.first if self.lines else number
        self.lines += 1


def read_table(
    path: Path | str,
    columns: Sequence[str] = (),
    *,
    separator: str | None = None,
    quoted: bool | None = None,
    left_out: Blank | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and columns of every row of a text, CSV, TSV or JSON-lines file, according to its ending.

    A text has the column `txt`. The arguments equal `read_rows`'s.
    """
    kind = table_kind(str(path))
    if kind == "txt":
        return ((number, {"txt": line.strip()}) for number, line in read_lines(path, left_out=left_out))
    if kind == "jsonl":
        return read_json(path, left_out)
    return read_rows(path, columns, separator=separator, quoted=quoted, left_out=left_out)


def read_json(path: Path | str, left_out: Blank | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of every line of a JSON-lines file (``.gz``: compressed); see `read_lines`."""
    for number, line in read_lines(path, left_out=left_out):
        row: Any = None
        try:
            row = json.loads(line)
            if "\\u" in line:
                json.dumps(row, ensure_ascii=False).encode()  # half a character is JSON, and no text
        except (ValueError, RecursionError) as error:
            if not line.lstrip().startswith("["):
                raise DataError(f"{path}, line {number}: no JSON ({error}); a line is an object of JSON") from error
            row = []  # the start of an array
        if isinstance(row, list):
            raise DataError(
                f"{path}, line {number}: an array of JSON; write one object per line (jq -c '.[]', or pandas' lines=True)"
            )
        if not isinstance(row, dict):
            raise DataError(f'{path}, line {number}: a row is an object like {{"file": ...}}, not {type(row).__name__}')
        yield number, row


def read_lines(
    path: Path | str, *, blank: bool = False, latin: bool = False, left_out: Blank | None = None
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file (``.gz``: compressed) with their numbers from 1.

    The text is UTF-8, or UTF-16 with a byte order mark.

    Lines end with a line feed, a carriage return or both. No other Unicode separator ends a line, since sentences contain
    them. Line ends and the byte order mark are removed.

    Args:
        path: File or URL.
        blank: Yield blank lines as well.
        latin: Read a file that is not UTF-8 as latin-1.
        left_out: Blank lines that are not yielded are added to it.

    Raises:
        DataError: If the file does not exist, is not UTF-8 or is a damaged gzip file, or a line exceeds `limits.LINE`.
    """
    for number, line in _whole_lines(path, latin):
        if blank or line.strip():
            yield number, line.rstrip("\r\n")
        elif left_out is not None:
            left_out.add(number)


def read_cells(path: Path, count: int, *, more: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of a tab-separated table without a line of column names, with their line numbers.

    Args:
        path: File.
        count: Number of cells per line.
        more: Allow further cells.
    """
    for number, line in read_lines(path):
        cells = line.split("\t")
        if len(cells) < count or (len(cells) > count and not more):
            wanted = f"at least {count}" if more else count
            raise DataError(f"{path}, line {number}: {len(cells)} tab-separated cells; {wanted} are needed")
        yield number, cells


def read_rows(
    path: Path | str,
    columns: Sequence[str],
    either: Sequence[str] = (),
    *,
    separator: str | None = None,
    quoted: bool | None = None,
    left_out: Blank | None = None,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a table (``.gz``: compressed) below a line of column names, with the numbers of their last lines.

    The rows are the rows of Python's csv module, each yielded or an error; blank lines are left out. A column without a
    name gets its number as a name.

    Args:
        path: UTF-8 file or URL.
        columns: Required columns, each once, in any order; further columns are kept. If empty, no name may occur twice.
        either: Columns; at least one is required.
        separator: Character between two cells. Default: a tab; in a ``.csv`` the separator in an Excel line ``sep=;``,
            otherwise the usual separator that occurs most often in the first row, outside quotation marks.
        quoted: Quotation marks enclose cells (which may contain separators and line ends). If False, they are text.
            Default: True in a ``.csv``, False in a ``.tsv``; then names of columns in marks, and cells that only a writer of
            quoted cells writes, are errors.
        left_out: Blank lines are added to it.

    Raises:
        DataError: As `read_lines`; if the file is empty, a column is missing, a row has another length than the header,
            marks are not quotation, or a TSV looks quoted.
    """
    csv.field_size_limit(limits.LINE)  # a text may be longer than csv's 128 kB
    if isinstance(path, Path) and options_of(str(path)):
        separator, quoted = dialect_of(str(path)).values()
        path = Path(split_options(str(path))[0])
    kind = table_kind(str(path))
    separator = separator or (_separator(path) if kind == "csv" else "\t")
    said, quoted = quoted is not None, kind == "csv" if quoted is None else quoted
    left_out = left_out or Blank()
    rows = _cells(path, separator, quoted, left_out)
    number, header = next(rows, (0, []))
    if not number:
        among = f", among them {_list([*columns, *either])}" if columns or either else ""
        raise DataError(f"{path} is empty; its first line names the columns{among}")
    if not (said or quoted) and all(cell[:1] == cell[-1:] == '"' for cell in header):
        raise DataError(_unsaid(path, number, header[0]))
    header = [name or f"column{place}" for place, name in enumerate(header, 1)]
    wanted = [*columns, *([column for column in header if column in either] or either[:1])]
    for column in wanted or header:
        if column not in header:
            near = did_you_mean(column, set(header) - {*columns, *either})
            raise DataError(f"{path}, line {number}: no column {column!r}.{near} It has the columns {_list(header)}")
        if header.count(column) > 1:
            raise DataError(f"{path}, line {number}: two columns have the name {column!r}; rename one")
    for number, cells in rows:
        if len(cells) == len(header):
            if not (said or quoted) and (odd := next(filter(_looks_quoted, cells), None)) is not None:
                raise DataError(_unsaid(path, number, odd))
            yield number, dict(zip(header, cells, strict=True))
        elif len(cells) == 1 and not cells[0].strip():
            left_out.add(number)
        else:
            raise DataError(
                f"{path}, line {number}: {len(cells)} cells under {len(header)} columns, separated by {separator!r}; "
                f"quotation marks are read as {'quoting, which cells with line ends need' if quoted else f'text{_QUOTE}'}"
            )


def dialect_of(url: str) -> dict[str, Any]:
    """Return the arguments `separator` and `quoted` of `read_rows` that the options of a URL name; others are None."""
    options = options_of(url)
    return {"separator": options.get("separator"), "quoted": {"yes": True, "no": False}.get(options.get("quoted", ""))}


def _unsaid(path: Path | str, number: int, cell: str) -> str:
    return (
        f"{path}, line {number}: the cell {cell[:40]!r} looks quoted, and marks of a .tsv are text{_QUOTE}, else #quoted=no"
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _cells(path: Path | str, separator: str, quoted: bool, left_out: Blank | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of Python's csv module, each with the number of its last line. Empty lines are added to `left_out`."""
    number = before = 0

    def lines() -> Iterator[str]:
        nonlocal number
        for number, line in _whole_lines(path):
            if number > 1 or not _EXCEL.fullmatch(line):
                yield line

    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    try:
        for cells in csv.reader(lines(), delimiter=separator, quoting=quoting, strict=True):
            if cells:
                yield number, cells
            elif left_out is not None:
                left_out.add(number)
            before = number
    except csv.Error as error:
        raise DataError(
            f"{path}, line {before + 1}: {error}; quotation marks are read as "
            f"{'quoting, and inside of it they are doubled' if quoted else f'text{_QUOTE}'}"
        ) from error


def _separator(path: Path | str) -> str:
    """Return the separator of a CSV according to its first lines."""
    lines = [line for _, line in islice(_whole_lines(path), 16)]
    if lines and (named := _EXCEL.fullmatch(lines[0])):
        return named[1]
    header = _QUOTED.sub(r"\1", "".join(lines).lstrip("\r\n")[: 2**16])
    return max(SEPARATORS, key=re.split(r"[\r\n]", header, maxsplit=1)[0].count)


def _looks_quoted(cell: str) -> bool:
    """Return whether an empty text, or one with a mark, may be in quotation marks here."""
    return len(cell) > 1 and cell[0] == cell[-1] == '"' and (len(cell) == 2 or '""' in cell[1:-1])


def _whole_lines(path: Path | str, latin: bool = False) -> Iterator[tuple[int, str]]:
    """Yield lines with line ends and numbers. Raises DataError as `read_lines`."""
    if isinstance(path, Path) and path.is_dir():
        raise DataError(f"{path} is a folder, a file is needed")
    if isinstance(path, Path) and not path.is_file():
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"file {path} not found.{did_you_mean(path.name, beside)}")
    if latin and any(_NO_UTF8.search(line) for _, line in _decoded(path, "utf-8")):
        yield from _decoded(path, "latin-1")
        return
    for number, line in _decoded(path, "utf-8-sig"):
        if number == 1:
            _refuse_other(path, line)
        if not line.isascii() and (bad := _NO_UTF8.search(line)):
            byte = ord(bad[0]) - 0xDC00
            raise DataError(f"{path}, line {number}: byte {byte:#04x} is not UTF-8; save the file as UTF-8")
        yield number, line


def _refuse_other(path: Path | str, line: str) -> None:
    """Raise DataError for a file with a first line that is not UTF-8 text."""
    content = line.encode("utf-8", "surrogateescape")
    for start, what in _OTHER.items():
        if content.startswith(start):
            raise DataError(f"{path} {what}")
    if line.count("\0") * 3 > len(line):
        raise DataError(f"{path} has as many zero bytes as UTF-16, or is damaged; save it as UTF-8")


def _decoded(path: Path | str, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield lines with line ends and numbers. Bytes that are not UTF-8 match `_NO_UTF8`."""
    number = 0
    try:
        if isinstance(path, Path):
            file: Any = path.open("rb")
        else:
            fs, place = filesystem(path)
            file = io.BufferedReader(fs.open(place, "rb"), 2**20)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(file)
            if is_gzipped(str(path)):
                file = stack.enter_context(gzip.GzipFile(fileobj=file))
            if encoding == "utf-8-sig" and file.peek(2).startswith(UTF16):  # Windows, "Unicode text"
                encoding = "utf-16"
            # All three line ends, and no other. Not by iteration: a line may be as long as a small gzip file makes it.
            text = io.TextIOWrapper(file, encoding, "surrogateescape", newline="")
            for number, line in enumerate(iter(partial(text.readline, limits.LINE + 1), ""), 1):
                if len(line) > limits.LINE:
                    raise DataError(f"{path}, line {number} has {limits.over('LINE', 'more characters', limits.LINE)}")
                yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read after line {number}: {error}; it is not a complete gzip file, so fetch it again, or "
            "compress it again"
        ) from error
    except OSError as error:
        if not isinstance(path, Path):
            raise  # of a store: `tables.readable` repeats the complete read
        raise DataError(f"{path} cannot be read: {error}") from error


def text_of(value: Any, place: str) -> str:
    """Return a value of a row as text; the empty text if the value is missing (None, NaN).

    Bytes are decoded as UTF-8. Numbers, dates and times are written out, whole numbers always without a decimal point.

    Args:
        value: A cell of a table, a value of JSON or a file of a sample.
        place: Place of the value, at the start of error messages.

    Raises:
        DecodeError: If the value is not a text (a list, a map, a truth value, infinity), or if the text is not UTF-8, is
            longer than `limits.TEXT`, or contains a lone surrogate or a zero byte.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8-sig")  # files written on Windows start with a byte order mark
        except UnicodeDecodeError as error:
            raise DecodeError(f"{place} is not UTF-8 ({error})") from error
    if value is None:
        return ""
    if not isinstance(value, str):
        if isinstance(value, float) and not math.isinf(value):
            value = "" if math.isnan(value) else repr(value).removesuffix(".0")
        if isinstance(value, bool | list | tuple | dict | float):
            found = value if isinstance(value, float) else type(value).__name__
            raise DecodeError(f"{place} is {found}, not a text; a text, a number or a date is needed")
    text = str(value)
    if len(text) > limits.TEXT:
        raise DecodeError(f"{place} has {limits.over('TEXT', len(text), limits.TEXT)} characters")
    if "\0" in text or (not text.isascii() and _SURROGATE.search(text)):
        raise DecodeError(f"{place} contains a lone surrogate or a zero byte, so it is not a text")
    return text
