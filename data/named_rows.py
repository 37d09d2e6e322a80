"""Rows of any table, one after the other and by the names of their columns, for packing; and the parts of a large one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from multicse.data import tables
from multicse.data.errors import DataError, did_you_mean
from multicse.data.shard_urls import expand, options_of, table_kind
from multicse.data.text_files import read_lines, read_rows

PART = 2**17
"""Rows of a table that a process reads at a time."""


def kind(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def named_rows(
    path: Path | str,
    columns: Sequence[str],
    where: Mapping[str, str] | None = None,
    quoted: bool | None = None,
    *,
    separator: str | None = None,
    part: tuple[int, int | None] = (0, None),
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number as an editor shows it for unquoted files, row) of a table or JSON-lines file, checked for `columns`.

    Only rows with the values of `where`; `quoted` and `separator` as in `table_rows`, which also says what is raised.
    `part`: first row and the one after the last, of what `data/tables.py` reads: Parquet, Arrow, URLs.
    """
    where = where or {}
    wanted = list(dict.fromkeys([*columns, *where]))
    rows: Iterator[tuple[int, dict[str, Any]]]
    if _by_number(path):
        rows = _checked(tables.rows(str(path), *part), str(path), "row", wanted)
    elif kind(path := Path(path)) == ".jsonl":
        rows = _checked(_json_rows(path), str(path), "line", wanted)
    elif kind(path) == ".csv":
        first = next(read_lines(path), (0, ""))[1] if separator is None else ""
        rows = read_rows(path, wanted, delimiter=separator or tables.separator_of(first), quoted=quoted is not False)
    elif kind(path) == ".tsv":
        rows = read_rows(path, wanted, delimiter=separator or "\t", quoted=quoted is True)
    else:
        raise DataError(f"{path}: a table or manifest is .csv, .tsv or .jsonl (each may end in .gz), .parquet or .arrow")
    for number, row in rows:
        if all(str(row[column]) == value for column, value in where.items()):
            yield number, row


def _by_number(path: Path | str) -> bool:
    """Whether `data/tables.py` reads it, which knows how many rows there are; else it is read from its beginning."""
    return table_kind(str(path)) in ("parquet", "arrow") or "://" in str(path) or bool(options_of(str(path)))


def held_in_table(source: str) -> bool:
    """Whether pictures or sounds are bytes of a table: Parquet, Arrow, a folder of these, a data set of Hugging Face."""
    if not Path(source).is_dir():
        return _by_number(source)
    return any(table_kind(path.name) in ("parquet", "arrow") for path in Path(source).iterdir())


def table_parts(source: str) -> list[tuple[str, tuple[int, int | None]]]:
    """The files of a table that `--streams.NAME.shards` would name, and parts of large ones (`PART`): first row, stop.

    Raises DataError where there is none.
    """
    plain = Path(source).is_file() or source.endswith(".gz")
    files = [source] if plain and not _by_number(source) else expand(source)[0]
    parts: list[tuple[str, tuple[int, int | None]]] = []
    for file in files:
        ends = [*range(0, tables.count(file), PART)] if _by_number(file) else [0]
        parts += [(file, part) for part in pairwise([*ends, None])]  # type: ignore[misc]  # only the last is none
    return parts


def _checked(
    rows: Iterable[tuple[int, dict[str, Any]]], path: str, unit: str, wanted: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in rows:
        for name in wanted:
            if name not in row:
                near = did_you_mean(name, row)
                raise DataError(f"{path}, {unit} {number}: no column {name!r}.{near} It has {', '.join(row) or 'none'}")
        yield number, row


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in read_lines(path):
        try:
            row = json.loads(line)
            if "\\u" in line:
                json.dumps(row, ensure_ascii=False).encode()  # half a character is JSON, and no text
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: no JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(f'{path}, line {number}: a row is an object like {{"file": ...}}, not {type(row).__name__}')
        yield number, tables.flat(row)
