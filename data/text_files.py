"""Text files and tables, plain or gzipped, row by row, with errors that name file, line and what to do."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from multicse.data import limits
from multicse.data.errors import DataError, did_you_mean
from multicse.data.shard_urls import filesystem, is_gzipped, table_kind

SEPARATORS = ",;\t|"
_EXCEL = re.compile(r"sep=(.)\r?\n?")  # a first line by which Excel is given the separator
_QUOTED = re.compile(r'(^|[,;\t|])"(?:[^"]|"")*"')
_NUMBER = re.compile(r"\s*(NA|[-+.\deE]*)\s*")  # R writes NA without marks
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # how bytes are decoded that are not UTF-8
_OTHER = {
    b"\x1f\x8b": "is compressed; add .gz to its name",
    b"BZh91AY&SY": "is compressed; decompress it (bunzip2)",
    b"\xfd7zXZ": "is compressed; decompress it (unxz)",
    b"\x28\xb5\x2f\xfd": "is compressed; decompress it (unzstd)",
    b"PK\x03\x04": "is a ZIP archive or an Excel workbook; unpack it, or save its sheet as CSV UTF-8",
    b"PAR1": "is a Parquet file; name it .parquet",
    b"\xff\xfe": "is UTF-16; save it as UTF-8 (Excel: CSV UTF-8)",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
}
"""How files begin that are neither texts nor text tables, and what to do with them."""


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
    path: Path | str, columns: Sequence[str] = (), *, separator: str | None = None, blank: Blank | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and columns of every row of a text, CSV, TSV or JSON-lines file, from its beginning.

    Args:
        path: File, or URL of one, whose ending says which it is. A text has the column `txt`.
        columns: As in `read_rows`.
        separator: As in `read_rows`.
        blank: As in `read_rows`.

    Raises:
        DataError: As `read_rows` and `read_json`.
        OSError: If the store of a URL fails.
    """
    kind = table_kind(str(path))
    if kind == "txt":
        return ((number, {"txt": line.strip()}) for number, line in read_lines(path, blank=blank))
    if kind == "jsonl":
        return read_json(path, blank)
    return read_rows(path, columns, separator=separator, blank=blank)


def read_json(path: Path | str, blank: Blank | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of every line of a JSON-lines file (``.gz``: compressed).

    Raises:
        DataError: As `read_lines`, and if a line is not an object of JSON or contains half a character.
    """
    for number, line in read_lines(path, blank=blank):
        row: Any = None
        try:
            row = json.loads(line)
            if "\\u" in line:
                json.dumps(row, ensure_ascii=False).encode()  # half a character is JSON, and no text
        except (ValueError, RecursionError) as error:
            if not line.lstrip().startswith("["):
                raise DataError(f"{path}, line {number}: no JSON ({error}); a line is an object of JSON") from error
            row = []  # the beginning of an array
        if isinstance(row, list):
            raise DataError(
                f"{path}, line {number}: an array of JSON; write an object a line (jq -c '.[]', or pandas' lines=True)"
            )
        if not isinstance(row, dict):
            raise DataError(f'{path}, line {number}: a row is an object like {{"file": ...}}, not {type(row).__name__}')
        yield number, row


def read_lines(path: Path | str, *, blank: Blank | None = None, latin: bool = False) -> Iterator[tuple[int, str]]:
    """Lines of a UTF-8 file (``.gz``: compressed) with their numbers from 1, without line ends and byte order mark.

    `path` may be a URL. Lines end by a line feed, a carriage return or both, and by nothing else, since sentences hold other
    Unicode separators. Blank lines are left out, and added to `blank`. With `latin` a file that is not
    UTF-8 is read as latin-1.

    Raises:
        DataError: a path that is no file, bytes that are not UTF-8, a gzip file that is cut or damaged, a line of more than
            `limits.LINE` characters.
    """
    for number, line in _whole_lines(path, latin):
        if line.strip():
            yield number, line.rstrip("\r\n")
        elif blank is not None:
            blank.add(number)


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
    path: Path | str,
    columns: Sequence[str],
    either: Sequence[str] = (),
    *,
    separator: str | None = None,
    quoted: bool | None = None,
    blank: Blank | None = None,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a table (``.gz``: compressed) whose first line names the columns, with the numbers of their last lines.

    They are the rows of Python's csv module: every one is yielded or an error. Empty lines are left out. A column without a
    name is called by its number.

    Args:
        path: the file, UTF-8, or its URL.
        columns: must be there, each once, in any order; further columns are kept. If empty, every column must be there once.
        either: one or more of these must be there as well.
        separator: what stands between two cells. Default: in a ``.csv`` what an Excel line ``sep=;`` names, otherwise the
            usual one that its first row has most often outside quotation marks; in other files a tab.
        quoted: whether cells may stand in quotation marks (and hold separators and line ends); else those are text.
            Default: in a ``.csv`` they may, in a ``.tsv`` if every cell that begins with a mark is such a cell, and one of
            them needs its marks or all cells but numbers have them.

        blank: the lines that are left out are added to it.

    Raises:
        DataError: as `read_lines`, an empty file, a header that lacks a column, a row of another length than the header,
            marks that are no quotation, or a TSV that has other rows with quotation than without.
    """
    csv.field_size_limit(limits.LINE)  # a text may be longer than csv's 128 kB
    kind = table_kind(str(path))
    separator = separator or (_separator(path) if kind == "csv" else "\t")
    quoted = kind == "csv" or (kind == "tsv" and _is_quoted(path, separator)) if quoted is None else quoted
    blank = blank or Blank()
    rows = _cells(path, separator, quoted, blank)
    number, header = next(rows, (0, []))
    if not number:
        among = f", among them {_list([*columns, *either])}" if columns or either else ""
        raise DataError(f"{path} is empty; its first line names the columns{among}")
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
            yield number, dict(zip(header, cells, strict=True))
        elif len(cells) == 1 and not cells[0].strip():
            blank.add(number)
        else:
            raise DataError(
                f"{path}, line {number}: {len(cells)} cells under {len(header)} columns, separated by {separator!r}; "
                f"quotation marks are read as {'quoting, which cells with line ends need' if quoted else 'text'}"
            )


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _cells(path: Path | str, separator: str, quoted: bool, blank: Blank | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of Python's csv module, each with the number of its last line. Empty lines are added to `blank`."""
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
            elif blank is not None:
                blank.add(number)
            before = number
    except csv.Error as error:
        raise DataError(
            f"{path}, line {before + 1}: {error}; quotation marks are read as "
            f"{'quoting, and inside of it they are doubled' if quoted else 'text'}"
        ) from error


def _separator(path: Path | str) -> str:
    """The separator of a CSV, as its beginning shows it."""
    lines = [line for _, line in islice(_whole_lines(path), 16)]
    if lines and (named := _EXCEL.fullmatch(lines[0])):
        return named[1]
    header = _QUOTED.sub(r"\1", "".join(lines).lstrip("\r\n")[: 2**16])
    return max(SEPARATORS, key=re.split(r"[\r\n]", header, maxsplit=1)[0].count)


def _is_quoted(path: Path | str, separator: str) -> bool:
    """Whether the quotation marks of a TSV quote: some programs write it so, others write texts with marks as they are.

    Raises:
        DataError: If it may be either, and the rows would be others.
    """
    if not any(line.startswith('"') or f'{separator}"' in line for _, line in _whole_lines(path)):
        return False
    try:
        quoting, text = (_lengths(_cells(path, separator, quoted)) for quoted in (True, False))
    except DataError:
        return False
    if len(quoting) == len(text) == 1 and quoting != text:
        raise DataError(
            f"{path} has {text.total():,} rows if its quotation marks are text, {quoting.total():,} if they quote. If they "
            "quote, name it .csv (its separator is found); if they are text, double them and quote the cells"
        )
    return len(quoting) == 1 and _shows_quotation(path, separator)


def _shows_quotation(path: Path | str, separator: str) -> bool:
    """Whether a TSV with as many cells either way holds what only programs that quote write.

    That is a cell in marks that holds a mark, a separator or a line end, or is empty; or marks around all cells but numbers.
    Without this, one part of a set would be read otherwise than the next, since all its cells in marks happen to be whole.
    """
    if any(
        re.search(rf"[\r\n{re.escape(separator)}]", cell) for _, cells in _cells(path, separator, True) for cell in cells
    ):
        return True
    every = True
    for cell in (cell for _, cells in _cells(path, separator, False) for cell in cells):
        if cell.startswith('"'):
            if cell == '""' or '""' in cell[1:-1]:
                return True
        elif not _NUMBER.fullmatch(cell):
            every = False
    return every


def _lengths(rows: Iterator[tuple[int, list[str]]]) -> Counter[int]:
    """How many rows have how many cells, without the blank lines that `read_rows` leaves out."""
    counts = Counter(len(cells) if len(cells) > 1 or cells[0].strip() else 0 for _, cells in rows)
    blank = counts.pop(0, 0)
    return counts if max(counts, default=1) > 1 else counts + Counter({1: blank})


def _whole_lines(path: Path | str, latin: bool = False) -> Iterator[tuple[int, str]]:
    """Lines with their ends and numbers."""
    if isinstance(path, Path) and path.is_dir():
        raise DataError(f"{path} is a folder, a file is needed")
    if isinstance(path, Path) and not path.is_file():
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no file {path}.{did_you_mean(path.name, beside)}")
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
    """DataError for a file that is no text in UTF-8 by its first line."""
    content = line.encode("utf-8", "surrogateescape")
    for start, what in _OTHER.items():
        if content.startswith(start):
            raise DataError(f"{path} {what}")
    if line.count("\0") * 3 > len(line):
        raise DataError(f"{path} has as many zero bytes as UTF-16, or is damaged; save it as UTF-8")


def _decoded(path: Path | str, encoding: str) -> Iterator[tuple[int, str]]:
    """Lines with their ends and numbers; what is not UTF-8 in them matches `_NO_UTF8`."""
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
            raise  # of a store: `tables.readable` tries the whole read again
        raise DataError(f"{path} cannot be read: {error}") from error
