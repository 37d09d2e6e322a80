"""Texts, tables, pictures and sounds -> the drafts of samples, which `data/shard_writer.py` packs into shards."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from multicse.data import tables
from multicse.data.errors import DataError, DecodeError, command, did_you_mean
from multicse.data.shard_urls import SPLITS, expand, options_of, table_kind
from multicse.data.shard_writer import LeftOut, UnpackedSample
from multicse.data.streams import decode
from multicse.data.text_files import Blank, read_lines, read_table
from multicse.data.texts import text_of

Missing = Literal["raise", "skip"]
PART = 2**17
"""Rows of a table that a process reads at a time."""
LITTER = ("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir")
"""Files and folders that Windows, macOS and network drives leave among pictures, in small letters."""
BLANK, EMPTY = "blank line", "text, captions or class are empty"
"""Why lines and rows are left out."""
UNUSABLE = ("missing", "cannot be decoded")
"""Why files are left out that were meant to be samples."""


# ---------------------------------------------------------------------------------------------------------- rows of tables


def named_rows(
    path: Path | str,
    columns: Sequence[str],
    where: Mapping[str, str] | None = None,
    part: tuple[int, int | None] = (0, None),
    blank: Blank | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number as an editor shows it for unquoted files, row) of a table or JSON-lines file, checked for `columns`.

    Only rows with the values of `where`. Raises as `table_rows`.
    `part`: first row and the one after the last, of what `data/tables.py` reads: Parquet, Arrow, URLs.
    Blank lines are added to `blank`.
    """
    where = where or {}
    wanted = list(dict.fromkeys([*columns, *where]))
    if _has_random_access(path):
        rows = tables.rows(str(path), *part)
        if blank is not None and not part[0]:
            blank.lines, blank.first = tables.blank(str(path))
    elif table_kind(str(path)) in ("csv", "tsv", "jsonl"):
        rows = ((number, tables.flat(row)) for number, row in read_table(Path(path), wanted, blank=blank))
    else:
        raise DataError(f"{path}: a table or manifest is .csv, .tsv or .jsonl (each may end in .gz), .parquet or .arrow")
    for number, row in rows:
        for name in wanted:
            if name not in row:
                near = did_you_mean(name, row)
                raise DataError(f"{path}, row {number}: no column {name!r}.{near} It has {', '.join(row) or 'none'}")
        if all(_name(row[column], f"{path}, row {number}, {column}") == value for column, value in where.items()):
            yield number, row


def _has_random_access(path: Path | str) -> bool:
    """Return whether `data/tables.py` reads a table, which finds rows by number; else it is read from its beginning."""
    return table_kind(str(path)) in ("parquet", "arrow") or "://" in str(path) or bool(options_of(str(path)))


def table_parts(source: str) -> list[tuple[str, tuple[int, int | None]]]:
    """The files of a table that `--streams.NAME.shards` would name, and parts of large ones (`PART`): first row, stop.

    Raises DataError where there is none.
    """
    parts: list[tuple[str, tuple[int, int | None]]] = []
    for file in expand(source)[0]:
        ends = [*range(0, tables.count(file), PART)] if _has_random_access(file) else [0]
        parts += [(file, part) for part in pairwise([*ends, None])]  # type: ignore[misc]  # only the last is none
    if not parts:
        raise DataError(f"{source}: the table has no rows; give another")
    return parts


# --------------------------------------------------------------------------------------------------------- sources to drafts


def files_of(source: Path, root: Path | None = None) -> Path:
    """Return the folder with the files of a source: itself if it is one; of a manifest `root`, or else its own folder.

    Raises:
        DataError: If the source does not exist, or `root` is not a folder.
    """
    if not source.exists():
        raise DataError(f"{source} does not exist; give a folder (class = subfolder) or a manifest (.csv, .tsv, .jsonl)")
    place = source if source.is_dir() else root or source.parent
    if not place.is_dir():
        raise DataError(f"--root {root} is not a folder; unpack an archive first")
    return place


def text_lines(paths: Sequence[Path]) -> Iterator[UnpackedSample | LeftOut]:
    """Sentences, one a line, of `.txt` or `.gz` files: field `txt`. Blank lines are left out.

    Raises:
        DataError: see `read_lines`; a text that streams refuse (`text_of`), a table or JSON lines, or no sentence in any of
            them.
    """
    empty = True
    for path in paths:
        first, blank = True, Blank()
        for number, line in read_lines(path, blank=blank):
            text = line.strip()
            if first:
                if path.name.removesuffix(".gz").endswith((".csv", ".tsv", ".jsonl")) or _is_record(text):
                    raise DataError(
                        f"{path} is a table, not a sentence a line; use: "
                        f"{command('pack')} table {shlex.quote(str(path))} --columns COLUMN"
                    )
                first = False
                empty = False
            yield from _blank(path, blank)
            yield UnpackedSample({"txt": text_of(text, f"{path}, line {number}").encode()})
        yield from _blank(path, blank)
    if empty:
        raise DataError(f"{' '.join(map(str, paths))}: nothing but empty lines; a sentence a line is needed")


def _blank(path: Path | str, blank: Blank) -> Iterator[LeftOut]:
    """Yield the blank lines that were left out since the last call."""
    if blank.lines:
        yield LeftOut(BLANK, f"{path}, line {blank.first}", blank.lines)
        blank.lines = 0


def _is_record(line: str) -> bool:
    """Whether a line is one of JSON lines, and no sentence."""
    try:
        return line.startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def table_rows(
    path: Path | str,
    columns: Sequence[str],
    *,
    label: str | None = None,
    where: Mapping[str, str] | None = None,
    keep_empty: bool = False,
    part: tuple[int, int | None] = (0, None),
) -> Iterator[UnpackedSample | LeftOut]:
    """Rows of a CSV, TSV or JSON lines (`.gz` too), Parquet or Arrow: one column becomes the field `txt`, several the field
    `json`, an object of texts.

    A row in which one of the columns is empty is left out, with `keep_empty` only one in which all are; so are blank lines.

    Args:
        path: a table; of a CSV or TSV the first line names the columns. Nested columns have dotted names: `answer.text`.
        columns: the texts, in the order in which they are kept: (sent0, sent1, hard_neg).
        label: column with the name of the class.
        where: only rows with these values.
        keep_empty: keep rows with some empty text, which a stream must be told to take (`TextStream.keep_empty`).
        part: see `named_rows`.

    Raises:
        DataError: missing or damaged file, unknown column, a row of another length, a value that is no text (`text_of`).
    """
    if not columns:
        raise DataError(f"{path}: name the columns to pack, e.g. --columns sent0 sent1 hard_neg")
    wanted, blank = [*columns, *([label] if label else [])], Blank()
    for number, row in named_rows(path, wanted, where, part, blank):
        texts = {name: text_of(row[name], f"{path}, row {number}, {name}").strip() for name in columns}
        name = _name(row[label], f"{path}, row {number}, {label}") if label else None
        usable = any(texts.values()) if keep_empty else all(texts.values())
        if not usable or name == "":
            yield LeftOut(EMPTY, f"{path}, row {number}")
        elif len(columns) == 1:
            yield UnpackedSample({"txt": texts[columns[0]].encode()}, label=name)
        else:
            yield UnpackedSample({"json": _json(texts)}, label=name)
    yield from _blank(path, blank)


def folder_files(folder: Path, extensions: Sequence[str], missing: Missing = "raise") -> Iterator[UnpackedSample | LeftOut]:
    """Files below a folder; its subfolders are the classes. Files that lie in no subfolder have no class.

    Sorted by path, so that every machine finds the same order. What `files_below` passes over is left out; with `missing`
    "skip" also a file of another kind, or one that cannot be decoded.

    Raises:
        DataError: a file of another kind, one that cannot be decoded, files both in subfolders and beside them, or
            subfolders that are splits.
    """
    found, left_out = files_below(folder)
    yield from left_out
    strange = [path for path in found if not _is_of(path.name, extensions)]
    if strange and missing == "raise":
        raise DataError(_unknown_kind(f"{folder}/{strange[0]}", extensions))
    yield from (LeftOut("of another kind", str(path)) for path in strange)
    found = [path for path in found if _is_of(path.name, extensions)]
    outside = [path for path in found if len(path.parts) == 1]
    if outside and len(outside) < len(found):
        raise DataError(
            f"{folder}: {outside[0]} lies beside the class folders ({len(outside)} such files); "
            "put it into one or take it away"
        )
    tops = sorted({path.parts[0] for path in found} - {str(path) for path in outside})
    splits = [name for name in tops if name.lower() in SPLITS]
    if len(splits) > 1 or (splits and splits == tops):
        raise DataError(
            f"{folder}: the folders {', '.join(splits)} are splits, not classes, and splits are not mixed; name one: "
            f"{shlex.quote(str(folder / splits[0]))}"
        )
    entries = (Entry(number, path.as_posix(), label=None if outside else path.parts[0]) for number, path in enumerate(found))
    yield from named_files(entries, str(folder), extensions, folder, missing=missing)


def files_below(folder: Path) -> tuple[list[Path], list[LeftOut]]:
    """Return the files below a folder, relative to it and sorted, and what is passed over.

    Links are followed, to nothing that lies below the folder or above it anyway: every file is found once. Hidden files and
    folders are passed over, and those that systems put beside pictures (`LITTER`).

    Raises OSError for a folder that cannot be read.
    """
    files: list[Path] = []
    links: list[Path] = []
    left_out: list[LeftOut] = []
    seen = {_identity(place) for place in folder.resolve().parents}
    tops = [folder]
    for top in tops:  # which grows: linked folders are read after all others
        for place, folders, names in os.walk(top, onerror=_fail):
            here = Path(place)
            if (identity := _identity(here)) in seen:
                left_out.append(LeftOut("link to a folder that is read already", str(here.relative_to(folder))))
                folders.clear()
                continue
            seen.add(identity)
            hidden = {name for name in [*folders, *names] if name.startswith(".") or name.lower() in LITTER}
            for name in sorted(hidden):
                left_out.append(LeftOut("hidden, or made by the system", str((here / name).relative_to(folder))))
            tops += [here / name for name in sorted(set(folders) - hidden) if (here / name).is_symlink()]
            folders[:] = sorted(name for name in set(folders) - hidden if not (here / name).is_symlink())
            for name in set(names) - hidden:
                (links if (here / name).is_symlink() else files).append(here / name)
    if links:
        seen = {_identity(path) for path in files}
    for path in sorted(links):
        if path.exists() and (identity := _identity(path)) in seen:
            left_out.append(LeftOut("link to a file that is read already", str(path.relative_to(folder))))
            continue
        if path.exists():
            seen.add(identity)
        files.append(path)
    return sorted(path.relative_to(folder) for path in files), left_out


def _identity(path: Path) -> tuple[int, int]:
    """Return the device and number of a file or folder, to which several paths may lead."""
    found = path.stat()
    return found.st_dev, found.st_ino


def _fail(error: OSError) -> None:
    raise error


def _is_of(name: str, extensions: Sequence[str]) -> bool:
    return name.lower().rpartition(".")[2] in extensions and "." in name


def _unknown_kind(where: str, extensions: Sequence[str]) -> str:
    text = f"{where} is of no known kind; allowed are {', '.join('.' + end for end in extensions)}"
    return text + (". A list of files is named in place of their folder, with --file-column" if table_kind(where) else "")


@dataclass(frozen=True)
class Entry:
    """What a row of a manifest says of a file."""

    row: int
    file: str
    captions: tuple[str, ...] = ()
    label: str | None = None


def manifest_files(
    path: Path,
    extensions: Sequence[str],
    files: Path,
    *,
    file: str = "file",
    captions: Sequence[str] = (),
    label: str | None = None,
    where: Mapping[str, str] | None = None,
    group: bool = False,
    missing: Missing = "raise",
) -> Iterator[UnpackedSample | LeftOut]:
    """Files that a CSV, TSV or JSON-lines file (`.gz` too) names, with captions and class.

    One caption column of a CSV or TSV becomes the field `txt`; several, or any of JSON lines (texts or lists of texts),
    or grouped ones, become the field `json`: ``{"captions": [...]}``. A row whose captions or class are empty is left out.

    Args:
        path: the manifest.
        extensions: kinds of files that are allowed.
        files: the folder where they lie.
        file: column with the path below `files`, or a pattern of columns: ``{ytid}.wav``, ``fold{fold}/{name}``.
        captions: columns with captions.
        label: column with the name of the class.
        where: only rows with these values.
        group: rows that name the same file are one sample with the captions of all of them, where the first stands.
        missing: "skip" leaves out a file that does not exist (videos that were deleted) or cannot be decoded.

    Raises:
        DataError: as `table_rows`, a file that is missing, of another kind or cannot be decoded, named with its row, or
            grouped rows of different classes.
    """
    parts = re.split(r"\{([^{}]+)\}", file if "{" in file else f"{{{file}}}")  # text, column, text, column, ..., text
    wanted, blank = [*parts[1::2], *captions, *([label] if label else [])], Blank()

    def read() -> Iterator[Entry]:
        for number, row in named_rows(path, wanted, where, blank=blank):
            place = f"{path}, row {number}"
            name = "".join(_name(row[part], f"{place}, {part}") if i % 2 else part for i, part in enumerate(parts))
            texts = tuple(text for column in captions for text in _captions(row[column], f"{place}, {column}"))
            yield Entry(number, name, texts, _name(row[label], f"{place}, {label}") if label else None)

    entries = _grouped(read(), path) if group else read()
    one = len(captions) == 1 and table_kind(str(path)) != "jsonl" and not group
    to: Literal["txt", "json"] | None = None if not captions else "txt" if one else "json"
    yield from named_files(entries, str(path), extensions, files, captions=to, missing=missing)
    yield from _blank(path, blank)


def named_files(
    entries: Iterable[Entry],
    source: str,
    extensions: Sequence[str],
    files: Path,
    *,
    captions: Literal["txt", "json"] | None = None,
    missing: Missing = "raise",
) -> Iterator[UnpackedSample | LeftOut]:
    """The samples of the files that `entries` of the manifest `source` name, in their order.

    Captions become the field `captions`, `txt` (the first of each) or `json`; an entry without any is left out then, as one
    with the class "" is. All else is as `manifest_files` says.
    """
    for entry in entries:
        if entry.label == "" or (captions and not entry.captions):
            yield LeftOut(EMPTY, f"{source}, row {entry.row}")
            continue
        if fault := _fault(entry, source, extensions, files):
            left_out, text = fault
            if missing == "raise":
                raise DataError(text)
            yield left_out
            continue
        fields: dict[str, bytes] = {}
        if captions:
            fields[captions] = entry.captions[0].encode() if captions == "txt" else _json({"captions": entry.captions})
        # Where the sample came from, in letters that no tar reader takes apart.
        stem = re.sub(r"[^A-Za-z0-9_-]+", "_", entry.file[: entry.file.rindex(".")])
        yield UnpackedSample(fields, entry.file, entry.label, f"{entry.row:08d}-{stem[-60:]}")


def _fault(entry: Entry, source: str, extensions: Sequence[str], files: Path) -> tuple[LeftOut, str] | None:
    """Return why the file of an entry cannot be used, for the list of what is left out and for an error; None if it can."""
    where, file = f"{source}, row {entry.row}: {entry.file}", files / entry.file
    if not _is_of(entry.file, extensions):
        return LeftOut("of another kind", entry.file), _unknown_kind(where, extensions)
    if not file.is_file():
        return LeftOut(UNUSABLE[0], entry.file), (
            f"{source}, row {entry.row}: the file {entry.file!r} does not exist in {files}, or is a link to nothing; put it "
            "there, or remove the row (pack.py: --root names another place, --missing skip leaves such rows out)"
        )
    try:
        decode.check(file.read_bytes(), entry.file.lower().rpartition(".")[2], file.name)
    except (DecodeError, OSError) as error:
        return LeftOut(UNUSABLE[1], f"{entry.file} ({error})"), (
            f"{where} cannot be used: {error}. Repair or remove it (pack.py: --missing skip leaves such files out)"
        )
    return None


def _grouped(entries: Iterable[Entry], path: Path) -> Iterable[Entry]:
    """One entry per file; it holds the texts of the manifest in memory."""
    found: dict[str, Entry] = {}
    for entry in entries:
        first = found.setdefault(entry.file, entry)
        if first is not entry:
            if first.label != entry.label:
                raise DataError(
                    f"{path}, rows {first.row} and {entry.row}: {entry.file} has the classes {first.label!r} and "
                    f"{entry.label!r}; one file has one class"
                )
            found[entry.file] = replace(first, captions=first.captions + entry.captions)
    return found.values()


def _captions(value: Any, place: str) -> list[str]:
    texts = [text_of(text, place).strip() for text in (value if isinstance(value, list) else [value])]
    return list(filter(None, texts))


def _name(value: Any, place: str) -> str:
    """A cell that names a class or a file; of a class, a truth value as well."""
    return str(value) if isinstance(value, bool) else text_of(value, place).strip()


def _json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode()
