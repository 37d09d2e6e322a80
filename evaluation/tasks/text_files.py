"""Text files and TSVs, plain or gzipped: numbered lines, and errors that name file, line and what to do."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from evaluation.task import EvaluationError, did_you_mean


def read_lines(path: Path, *, blank: bool = False, latin: bool = False) -> Iterator[tuple[int, str]]:
    """Lines of a UTF-8 file (``.gz``: compressed) with their numbers from 1, without line ends and byte order mark.

    Only line feeds end a line, since sentences hold other Unicode separators. Blank lines are left out unless `blank` is
    set. With `latin` a file that is not UTF-8 is read as latin-1.

    Raises EvaluationError for a path that is no file, bytes that are not UTF-8, and a gzip file that is cut or damaged.
    """
    _check(path)
    encoding = "latin-1" if latin and not _is_utf8(path) else "utf-8"
    for number, content in _raw(path):
        try:
            line = content.decode("utf-8-sig" if number == 1 and encoding == "utf-8" else encoding)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise EvaluationError(f"{path}, line {number}: byte {byte:#04x} is not UTF-8; save the file as UTF-8") from error
        if blank or line.strip():
            yield number, line.rstrip("\r\n")


def read_table(path: Path, columns: Sequence[str], either: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a TSV with a header, never quoted, by column name, with their line numbers.

    The header must have each of `columns` once, in any order, and one or more of `either`; further ones are kept.

    Raises EvaluationError as `read_lines` does, and for an empty file, a header that lacks a column, and a row with
    another number of fields than the header.
    """
    lines = read_lines(path)
    needs = ", ".join([*columns, *([" or ".join(either)] if either else [])])
    number, line = next(lines, (0, ""))
    if not number:
        raise EvaluationError(f"{path} is empty; it needs a header with the tab-separated columns {needs}")
    header = line.split("\t")
    for column in (*columns, *([] if set(either) & set(header) else either[:1])):
        if header.count(column) != 1:
            what = "more than one column" if column in header else "no column"
            nearest = "." if column in header else did_you_mean(column, set(header) - {*columns, *either})
            raise EvaluationError(
                f"{path}, line {number}: {what} {column!r}{nearest} Found {', '.join(map(repr, header))}; the file needs a "
                f"header with the tab-separated columns {needs}"
            )
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != len(header):
            raise EvaluationError(
                f"{path}, line {number}: {len(fields)} tab-separated fields where the header has {len(header)}"
            )
        yield number, dict(zip(header, fields, strict=True))


def _check(path: Path) -> None:
    if path.is_dir():
        raise EvaluationError(f"{path} is a folder, a file is needed")
    if not path.is_file():
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise EvaluationError(f"no file {path}{did_you_mean(path.name, beside)}")


def _raw(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise EvaluationError(
            f"{path} cannot be read after line {number}: {error}; it is not a complete gzip file, so fetch it again, or "
            "compress it again"
        ) from error
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read: {error}") from error


def _is_utf8(path: Path) -> bool:
    try:
        for _, line in _raw(path):
            line.decode()
    except UnicodeDecodeError:
        return False
    return True
