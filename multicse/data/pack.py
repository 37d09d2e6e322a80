"""Drafts of samples from texts, tables, images and audio files, which `data/shard_writer.py` packs into shards.

Input that cannot be used is a DataError, which names file and row.
"""

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
from multicse.data.text_files import Blank, read_lines, read_table, text_of

Missing = Literal["raise", "skip"]
PART = 2**17
"""Rows of a table that a process reads at a time."""
LITTER = ("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir")
"""Files and folders that Windows, macOS and network drives leave among images, in small letters."""
BLANK, EMPTY = "blank line", "text, captions or class are empty"
"""Why lines and rows are left out."""
UNUSABLE = ("missing", "cannot be decoded")
"""Why files that should be samples are left out."""


# ---------------------------------------------------------------------------------------------------------- rows of tables


def named_rows(
    path: Path | str,
    columns: Sequence[str],
    where: Mapping[str, str] | None = None,
    part: tuple[int, int | None] = (0, None),
    blank: Blank | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and content of the rows of a table or manifest, checked for `columns`.

    Args:
        path: Table or manifest.
        columns: Columns that the table must have. A row of JSON lines without one has a missing value, None.
        where: Only rows with these values are yielded.
        part: First row, and the row after the last, of a table that `data/tables.py` reads: Parquet, Arrow, URLs.
        blank: Blank lines are added to it.

    Yields:
        Number of the row (of text tables its line, of others counted from 0), and its columns by name.
    """
    where = where or {}
    wanted = list(dict.fromkeys([*columns, *where]))
    if _has_random_access(path):
        rows = tables.rows(str(path), *part)
        if blank is not None and not part[0]:
            blank.lines, blank.first = tables.table(str(path)).blank
    elif table_kind(str(path)) in ("csv", "tsv", "jsonl"):
        rows = _flat_rows(Path(path), wanted, blank)
    else:
        raise DataError(f"{path}: a table or manifest is .csv, .tsv or .jsonl (each may end in .gz), .parquet or .arrow")
    known: set[str] = set()  # columns of all rows
    for number, row in rows:
        if absent := [name for name in wanted if name not in row]:
            known = known or (set(row) if _has_random_access(path) else _names(Path(path)))
            if name := next((name for name in absent if name not in known), None):
                near, has = did_you_mean(name, known), ", ".join(sorted(known)) or "none"
                raise DataError(f"{path}, row {number}: no column {name!r}.{near} It has {has}")
            row |= dict.fromkeys(absent)
        if all(_name(row[column], f"{path}, row {number}, {column}") == value for column, value in where.items()):
            yield number, row


def _flat_rows(path: Path, columns: Sequence[str], blank: Blank | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in read_table(path, columns, left_out=blank):
        try:
            yield number, tables.flat(row)
        except DecodeError as error:
            raise DataError(f"{path}, row {number}: {error}") from None


def _names(path: Path) -> set[str]:
    return {name for _, row in _flat_rows(path, ()) for name in row}


def _has_random_access(path: Path | str) -> bool:
    """Return whether `data/tables.py` reads a table by row numbers. Otherwise it is read from its start."""
    return table_kind(str(path)) in ("parquet", "arrow") or "://" in str(path) or bool(options_of(str(path)))


def table_parts(source: str) -> list[tuple[str, tuple[int, int | None]]]:
    """Return the files of a table with the parts that are read together: first row, and the row after the last."""
    parts: list[tuple[str, tuple[int, int | None]]] = []
    for file in expand(source)[0]:
        ends = [*range(0, tables.table(file).samples, PART)] if _has_random_access(file) else [0]
        parts += [(file, part) for part in pairwise([*ends, None])]  # type: ignore[misc]  # only the last is None
    if not parts:
        raise DataError(f"{source}: the table has no rows; give another")
    return parts


# --------------------------------------------------------------------------------------------------------- sources to drafts


def files_of(source: Path, root: Path | None = None) -> Path:
    """Return the folder with the files of a source: a folder itself; for a manifest `root`, by default its folder."""
    if not source.exists():
        raise DataError(f"{source} does not exist; give a folder (class = subfolder) or a manifest (.csv, .tsv, .jsonl)")
    place = source if source.is_dir() else root or source.parent
    if not place.is_dir():
        raise DataError(f"--root {root} is not a folder; unpack an archive first")
    return place


def text_lines(paths: Sequence[Path]) -> Iterator[UnpackedSample | LeftOut]:
    """Yield the sentences of text files, one per line, as samples with the field `txt`. Blank lines are left out."""
    empty = True
    for path in paths:
        first, blank = True, Blank()
        for number, line in read_lines(path, left_out=blank):
            text = line.strip()
            if first:
                if path.name.removesuffix(".gz").endswith((".csv", ".tsv", ".jsonl")) or _is_record(text):
                    raise DataError(
                        f"{path} is a table, not a text with one sentence per line; use: "
                        f"{command('pack')} table {shlex.quote(str(path))} --columns COLUMN"
                    )
                first = False
                empty = False
            yield from _blank(path, blank)
            yield UnpackedSample({"txt": text_of(text, f"{path}, line {number}").encode()})
        yield from _blank(path, blank)
    if empty:
        raise DataError(f"{' '.join(map(str, paths))}: only blank lines; a text with one sentence per line is needed")


def _blank(path: Path | str, blank: Blank) -> Iterator[LeftOut]:
    """Yield the blank lines that were left out since the last call."""
    if blank.lines:
        yield LeftOut(BLANK, f"{path}, line {blank.first}", blank.lines)
        blank.lines = 0


def _is_record(line: str) -> bool:
    """Return whether a line is an object of JSON, and not a sentence."""
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
    """Yield the rows of a table as samples: one column becomes the field `txt`, several become the field `json`.

    Rows in which one of the columns is empty, and blank lines, are left out.

    Args:
        path: CSV, TSV, JSON lines (also ``.gz``), Parquet or Arrow. Nested columns have dotted names: ``answer.text``.
        columns: Columns with the texts, in the order in which they are stored: (sent0, sent1, hard_neg).
        label: Column with the name of the class.
        where: Only rows with these values become samples.
        keep_empty: Leave out only rows in which all texts are empty; `TextStream.keep_empty` reads the others.
        part: As in `named_rows`.
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
    """Yield the files below a folder as samples, sorted by path. The subfolders are the classes.

    Args:
        folder: Folder of class folders, or of files without classes.
        extensions: Allowed kinds of files.
        missing: "skip" leaves out files of other kinds and files that cannot be decoded.

    Raises:
        DataError: If a file is of another kind or cannot be decoded, files are next to class folders, or subfolders are
            splits.
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
            f"{folder}: {outside[0]} is next to the class folders ({len(outside)} such files); "
            "move it into one, or remove it"
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
    """Return the files below a folder, relative to it and sorted, and the files and folders that are left out.

    Links are followed, except to files and folders that are below or above the folder anyway: every file is found once.
    Hidden files and folders are left out, and the ones in `LITTER`.
    """
    files: list[Path] = []
    links: list[Path] = []
    left_out: list[LeftOut] = []
    seen = {_identity(place) for place in folder.resolve().parents}
    tops = [folder]
    for top in tops:  # linked folders are appended, and read after all others
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
    """Return the device and inode of a file or folder, which may have several paths."""
    found = path.stat()
    return found.st_dev, found.st_ino


def _fail(error: OSError) -> None:
    raise error


def _is_of(name: str, extensions: Sequence[str]) -> bool:
    return name.lower().rpartition(".")[2] in extensions and "." in name


def _unknown_kind(where: str, extensions: Sequence[str]) -> str:
    text = f"{where} is of an unknown kind; allowed are {', '.join('.' + end for end in extensions)}"
    return text + (". Name a list of files instead of their folder, with --file-column" if table_kind(where) else "")


@dataclass(frozen=True)
class Entry:
    """Row of a manifest: a file with its captions and class."""

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
    """Yield the files that a manifest names as samples, with captions and class.

    One caption column of a CSV or TSV becomes the field `txt`. Several columns, columns of JSON lines (texts or lists of
    texts) and grouped captions become the field `json`: ``{"captions": [...]}``. Rows with empty captions or an empty class
    are left out.

    Args:
        path: CSV, TSV or JSON lines (also ``.gz``).
        extensions: Allowed kinds of files.
        files: Folder with the files.
        file: Column with the path below `files`, or a pattern of columns: ``{ytid}.wav``, ``fold{fold}/{name}``.
        captions: Columns with captions.
        label: Column with the name of the class.
        where: Only rows with these values become samples.
        group: Make one sample of all rows that name the same file, at the position of the first, with all captions.
        missing: "skip" leaves out files that do not exist (deleted videos), are of other kinds or cannot be decoded.
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
    """Yield the files that the entries of a manifest, named `source`, list as samples, in their order; see `manifest_files`.

    With `captions`, the field `txt` contains the first caption of an entry, and `json` all of them. Entries with an empty
    class, or then without captions, are left out.
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
            one = " ".join(entry.captions[0].split())  # a line of a txt is a caption
            fields[captions] = one.encode() if captions == "txt" else _json({"captions": entry.captions})
        # The path of the file, in letters at which no tar reader splits.
        stem = re.sub(r"[^A-Za-z0-9_-]+", "_", entry.file[: entry.file.rindex(".")])
        yield UnpackedSample(fields, entry.file, entry.label, f"{entry.row:08d}-{stem[-60:]}")


def _fault(entry: Entry, source: str, extensions: Sequence[str], files: Path) -> tuple[LeftOut, str] | None:
    """Return why the file of an entry cannot be used, for `left_out` and as an error message; None if it can be used."""
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
    """Return one entry per file, and rows without a caption separately. The texts of the manifest are kept in memory."""
    found: dict[str, Entry] = {}
    entries = list(entries)
    captioned = any(entry.captions for entry in entries)
    empty = [entry for entry in entries if captioned and not entry.captions]
    for entry in entries:
        if captioned and not entry.captions:
            continue
        first = found.setdefault(entry.file, entry)
        if first is not entry:
            if first.label != entry.label:
                raise DataError(
                    f"{path}, rows {first.row} and {entry.row}: {entry.file} has the classes {first.label!r} and "
                    f"{entry.label!r}; one file has one class"
                )
            found[entry.file] = replace(first, captions=first.captions + entry.captions)
    return [*found.values(), *empty]


def _captions(value: Any, place: str) -> list[str]:
    texts = [text_of(text, place).strip() for text in (value if isinstance(value, list) else [value])]
    return list(filter(None, texts))


def _name(value: Any, place: str) -> str:
    """Return the name of a class or file in a cell. A class may be a truth value."""
    return str(value) if isinstance(value, bool) else text_of(value, place).strip()


def _json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode()
