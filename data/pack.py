"""Texts, tables, pictures and sounds -> WebDataset shards: `NAME-SPLIT-000000.tar`, ... and a `dataset.json` beside them.

Two passes, so that memory stays flat for millions of samples: the source is read once into a spool file, which only keeps a
position per sample in memory; then the samples are written in a seeded order. Equal input, seed and names give equal bytes.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from tqdm import tqdm

from data.errors import DataError
from data.order import permutation, seed_of
from data.shards import MANIFEST, WIDS_KIND, read_manifest
from data.streams.decode import IMAGES, SOUNDS

_PARTIAL = ".partial"
_UNREADABLE = (OSError, EOFError, zlib.error)  # the last two are gzip's: cut short, damaged


@dataclass(frozen=True)
class Draft:
    """A sample that is about to be packed."""

    fields: dict[str, bytes] = field(default_factory=dict)
    """Fields that are at hand."""
    file: str | None = None
    """A source file that is copied as it is; its extension names the field."""
    label: str | None = None
    """Name of its class; becomes the integer field `cls`."""
    key: str = ""
    """Replaces the position in the source as the sample's key."""


Drafts = Iterable[Draft | None]
"""Samples of a source in its order; None stands for one that is left out because it is empty, or its file missing."""


@dataclass(frozen=True)
class Output:
    """What the shards are called, and how they are cut."""

    folder: Path
    name: str
    split: str = "train"
    shard_size: int = 10_000
    """At most this many samples in a shard; shards are filled evenly."""
    shuffle: bool = True
    seed: int = 0
    licence: str = "unknown"
    source: str = "unknown"
    overwrite: bool = False


@dataclass(frozen=True)
class Packed:
    """What was packed."""

    folder: Path
    samples: int
    dropped: int
    """Samples left out because they were empty, or their file missing."""
    shards: int
    bytes: int
    classes: tuple[str, ...] = ()


class Files(Protocol):
    """Where the files that a manifest names lie."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes: ...


class FolderFiles:
    """Files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def __str__(self) -> str:
        return str(self.folder)


class TarFiles:
    """Files within a tar archive, which is not unpacked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tar = tarfile.open(path)  # noqa: SIM115  # read from until the packing ends
            self._members = {member.name.removeprefix("./"): member for member in self._tar if member.isfile()}
        except tarfile.TarError as error:
            raise DataError(f"--root {path} is neither a folder nor a tar archive ({error})") from error

    def has(self, name: str) -> bool:
        return name in self._members

    def read(self, name: str) -> bytes:
        content = self._tar.extractfile(self._members[name])
        assert content is not None  # only files are listed
        return content.read()

    def __str__(self) -> str:
        return str(self.path)


# ---------------------------------------------------------------------------------------------------------------- sources


def text_lines(paths: Sequence[Path]) -> Iterator[Draft | None]:
    """Sentences, one a line, of `.txt` or `.gz` files: field `txt`. Empty lines give None.

    Raises:
        DataError: a file is missing or damaged, or a line is not UTF-8.
    """
    for path in paths:
        with _opened(path) as file:
            for number, line in enumerate(_bytes_lines(file, path), 1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}, line {number}: not UTF-8 ({error}); convert it, e.g. with iconv") from error
                yield Draft({"txt": text.encode()}) if text else None


def table_rows(
    path: Path,
    columns: Sequence[str],
    *,
    label: str | None = None,
    where: Mapping[str, str] | None = None,
    quoted: bool | None = None,
) -> Iterator[Draft | None]:
    """Rows of a CSV or TSV (`.gz` too): one column becomes the field `txt`, several the field `json`, an object of texts.

    A row in which one of the columns is empty gives None.

    Args:
        path: a file whose first line names the columns.
        columns: the texts, in the order in which they are kept: (sent0, sent1, hard_neg).
        label: column with the name of the class.
        where: only rows with these values.
        quoted: whether fields may stand in quotation marks; none: in a CSV yes, in a TSV no.

    Raises:
        DataError: missing or damaged file, unknown column, a row of another length, text that is not UTF-8.
    """
    if not columns:
        raise DataError(f"{path}: name the columns to pack, e.g. --columns sent0 sent1 hard_neg")
    for _, row in _rows(path, [*columns, *([label] if label else [])], where, quoted):
        texts = {name: _text(row[name]) for name in columns}
        name = _text(row[label]) if label else None
        if not all(texts.values()) or name == "":
            yield None
        elif len(columns) == 1:
            yield Draft({"txt": texts[columns[0]].encode()}, label=name)
        else:
            yield Draft({"json": _json(texts)}, label=name)


def folder_files(folder: Path, extensions: Sequence[str]) -> Iterator[Draft]:
    """Files below a folder; its subfolders are the classes. Files that lie in no subfolder have no class.

    Hidden files are passed over. Sorted by path, so that every machine finds the same order.

    Raises:
        DataError: no folder, a file of another kind, or files both in subfolders and beside them.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; give a folder (class = subfolder) or a manifest (.csv, .tsv, .jsonl)")
    found = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    found = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    outside = [path for path in found if len(path.parts) == 1]
    if outside and len(outside) < len(found):
        raise DataError(
            f"{folder}: {outside[0]} lies beside the class folders ({len(outside)} such files); "
            "put it into one or take it away"
        )
    for number, path in enumerate(found):
        _check_extension(path.name, extensions, str(folder / path))
        label = None if outside else path.parts[0]
        yield Draft(file=path.as_posix(), label=label, key=_file_key(number, path.as_posix()))


@dataclass(frozen=True)
class _Entry:
    """What a row of a manifest says."""

    row: int
    file: str
    captions: tuple[str, ...]
    label: str | None


def manifest_files(
    path: Path,
    extensions: Sequence[str],
    files: Files,
    *,
    file: str = "file",
    captions: Sequence[str] = (),
    label: str | None = None,
    where: Mapping[str, str] | None = None,
    quoted: bool | None = None,
    group: bool = False,
    missing: Literal["raise", "skip"] = "raise",
) -> Iterator[Draft | None]:
    """Files that a CSV, TSV or JSON-lines file (`.gz` too) names, with captions and class.

    One caption column of a CSV or TSV becomes the field `txt`; several, or any of JSON lines (texts or lists of texts),
    or grouped ones, become the field `json`: ``{"captions": [...]}``. A row whose captions or class are empty gives None.

    Args:
        path: the manifest.
        extensions: kinds of files that are allowed.
        files: where they lie.
        file: column with the path below `files`, or a pattern of columns: ``{ytid}.wav``, ``fold{fold}/{name}``.
        captions: columns with captions.
        label: column with the name of the class.
        where: only rows with these values.
        quoted: see `table_rows`.
        group: rows that name the same file are one sample with the captions of all of them, where the first stands.
        missing: "skip" gives None for a file that is not there (videos that no longer exist).

    Raises:
        DataError: as `table_rows`, a file that is missing or of another kind, named with its row, or grouped rows of
            different classes.
    """
    entries: Iterable[_Entry] = _entries(path, file, captions, label, where, quoted)
    if group:
        entries = _grouped(entries, path)
    as_text = len(captions) == 1 and _suffix(path) != ".jsonl" and not group
    for entry in entries:
        _check_extension(entry.file, extensions, f"{path}, row {entry.row}: {entry.file}")
        there = files.has(entry.file)
        if not there and missing == "raise":
            raise DataError(
                f"{path}, row {entry.row}: the file {entry.file!r} does not exist in {files}; set --root, remove the row, "
                "or leave such rows out with --missing skip"
            )
        if not there or (captions and not entry.captions) or entry.label == "":
            yield None
            continue
        fields: dict[str, bytes] = {}
        if entry.captions:
            texts = list(entry.captions)
            fields = {"txt": texts[0].encode()} if as_text else {"json": _json({"captions": texts})}
        yield Draft(fields, entry.file, entry.label, _file_key(entry.row, entry.file))


def _entries(
    path: Path,
    file: str,
    captions: Sequence[str],
    label: str | None,
    where: Mapping[str, str] | None,
    quoted: bool | None,
) -> Iterator[_Entry]:
    parts = re.split(r"\{([^{}]+)\}", file if "{" in file else f"{{{file}}}")  # text, column, text, column, ..., text
    columns = parts[1::2]
    for number, row in _rows(path, [*columns, *captions, *([label] if label else [])], where, quoted):
        name = "".join(_text(row[part]) if place % 2 else part for place, part in enumerate(parts))
        texts = tuple(text for column in captions for text in _captions(row[column], column, path, number))
        yield _Entry(number, name, texts, _text(row[label]) if label else None)


def _grouped(entries: Iterable[_Entry], path: Path) -> Iterable[_Entry]:
    """One entry per file; it holds the texts of the manifest in memory."""
    found: dict[str, _Entry] = {}
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


def _captions(value: Any, column: str, path: Path, number: int) -> list[str]:
    values = value if isinstance(value, list) else [value] if value is not None else []
    if not all(isinstance(text, str) for text in values):
        raise DataError(f"{path}, row {number}: {column!r} is {value!r}, neither a text nor a list of texts")
    return [text.strip() for text in values if text.strip()]


def _text(value: Any) -> str:
    """A cell as text; JSON has numbers (classes) and null as well."""
    return "" if value is None else str(value).strip()


def _json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode()


def _file_key(number: int, name: str) -> str:
    """Where the sample came from, in letters that no tar reader takes apart."""
    stem = name[: name.rindex(".")]
    return f"{number:08d}-{re.sub(r'[^A-Za-z0-9_-]+', '_', stem)[-60:]}"


def _check_extension(name: str, extensions: Sequence[str], where: str) -> None:
    if name.rpartition(".")[2].lower() not in extensions or "." not in name:
        raise DataError(f"{where} is of no known kind; allowed are {', '.join('.' + end for end in extensions)}")


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _opened(path: Path) -> IO[bytes]:
    if not path.is_file():
        raise DataError(f"{path} does not exist" if not path.exists() else f"{path} is a folder, not a file")
    return gzip.open(path) if path.name.endswith(".gz") else path.open("rb")  # type: ignore[return-value]  # both read bytes


def _bytes_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from file
    except _UNREADABLE as error:
        raise DataError(f"{path} cannot be read to its end: {error}") from error


def _rows(
    path: Path, columns: Sequence[str], where: Mapping[str, str] | None, quoted: bool | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number as an editor shows it for unquoted files, row) of a table or JSON-lines file, checked for `columns`."""
    where = where or {}
    wanted = list(dict.fromkeys([*columns, *where]))
    rows = _json_rows(path, wanted) if _suffix(path) == ".jsonl" else _table_rows(path, wanted, quoted)
    for number, row in rows:
        if all(str(row[column]) == value for column, value in where.items()):
            yield number, row


def _unknown_columns(path: Path, wanted: Sequence[str], have: Sequence[str], row: str = "") -> DataError:
    missing = [name for name in wanted if name not in have]
    return DataError(f"{path}{row} has no column {', '.join(map(repr, missing))}; it has {', '.join(have) or 'none'}")


def _table_rows(path: Path, wanted: Sequence[str], quoted: bool | None) -> Iterator[tuple[int, dict[str, Any]]]:
    if _suffix(path) not in (".csv", ".tsv"):
        raise DataError(f"{path}: a table or manifest is .csv, .tsv or .jsonl (each may end in .gz)")
    comma = _suffix(path) == ".csv"
    quoted = comma if quoted is None else quoted
    with _opened(path) as raw:
        csv.field_size_limit(2**24)  # a text may be longer than csv's 128 kB
        text = io.TextIOWrapper(raw, "utf-8-sig", newline="")
        reader = csv.reader(
            text, delimiter="," if comma else "\t", quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=quoted
        )
        try:
            header = next(reader, [])
            if not set(wanted) <= set(header):
                raise _unknown_columns(path, wanted, header)
            if twice := [name for name in wanted if header.count(name) > 1]:
                raise DataError(f"{path} has two columns {twice[0]!r}; rename one")
            for row in reader:
                if not row:  # an empty line
                    continue
                if len(row) != len(header):
                    raise DataError(
                        f"{path}, line {reader.line_num}: {len(row)} cells under {len(header)} columns; "
                        f"quotation marks are read as {'quoting' if quoted else 'text'}, see --quoted"
                    )
                yield reader.line_num, dict(zip(header, row, strict=True))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, after line {reader.line_num}: not UTF-8 ({error}); convert it, e.g. with iconv"
            ) from error
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: {error}; see --quoted") from error
        except _UNREADABLE as error:
            raise DataError(f"{path} cannot be read to its end: {error}") from error


def _json_rows(path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    with _opened(path) as file:
        for number, line in enumerate(_bytes_lines(file, path), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, row {number}: no JSON ({error})") from error
            if not isinstance(row, dict):
                raise DataError(f'{path}, row {number}: a row is an object like {{"file": ...}}, not {type(row).__name__}')
            if not set(wanted) <= set(row):
                raise _unknown_columns(path, wanted, list(row), f", row {number}")
            yield number, row


# ---------------------------------------------------------------------------------------------------------------- writing


class _Spool:
    """Drafts on disk: appended once, then read in any order. Keeps eight bytes of memory per draft."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._offsets = array("Q", [0])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def append(self, draft: Draft) -> None:
        sizes = {name: len(value) for name, value in draft.fields.items()}
        head = json.dumps([sizes, draft.file, draft.label, draft.key]).encode()
        record = head + b"\n" + b"".join(draft.fields.values())
        self._file.write(record)
        self._offsets.append(self._offsets[-1] + len(record))

    def flush(self) -> None:
        self._file.flush()

    def __getitem__(self, i: int) -> Draft:
        start, stop = self._offsets[i], self._offsets[i + 1]
        head, _, rest = os.pread(self._file.fileno(), stop - start, start).partition(b"\n")
        sizes, file, label, key = json.loads(head)
        fields, place = {}, 0
        for name, size in sizes.items():
            fields[name] = rest[place : place + size]
            place += size
        return Draft(fields, file, label, key)

    def close(self) -> None:
        self._file.close()


def pack(drafts: Drafts, output: Output, files: Files | None = None, classes: Sequence[str] | None = None) -> Packed:
    """Write the samples of a source as shards with their `dataset.json`.

    Nothing appears under its final name before all of it is written, `dataset.json` comes last, and what a killed run left
    behind is removed by the next.

    Args:
        drafts: the samples.
        output: where to and how.
        files: where the files lie that drafts name.
        classes: names of the classes 0, 1, ... (of an earlier packed split); none: those that occur, sorted (as numbers when
            all are whole numbers).

    Raises:
        DataError: nothing to pack, output that exists, a class that is not in `classes`, or whatever the source finds wrong.
    """
    _check_output(output)
    output.folder.mkdir(parents=True, exist_ok=True)
    with _locked(output.folder):
        old = _existing(output)
        partial = output.folder / _PARTIAL
        shutil.rmtree(partial, ignore_errors=True)  # of a killed run: the lock is ours
        partial.mkdir()
        try:
            packed, record = _write(drafts, output, partial, files, classes)
            (output.folder / MANIFEST).unlink(missing_ok=True)  # from here on the old shards are no longer described
            for path in old:
                path.unlink(missing_ok=True)
            for entry in record["shardlist"]:
                os.replace(partial / entry["url"], output.folder / entry["url"])
            (partial / MANIFEST).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(partial / MANIFEST, output.folder / MANIFEST)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return packed


def _check_output(output: Output) -> None:
    for what, name in (("name", output.name), ("split", output.split)):
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise DataError(
                f"--{what} {name!r}: letters, digits, '_', '-' and '.' only, since it becomes part of file names"
            )
    if output.shard_size < 1:
        raise DataError(f"--shard-size {output.shard_size}; it must be at least 1 sample")
    if output.folder.exists() and not output.folder.is_dir():
        raise DataError(f"--out {output.folder} is a file; give a folder")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process at a time packs into a folder; the lock ends with the process, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(f"--out {folder}: another process is packing into this folder; wait for it") from error
        yield
    finally:
        os.close(handle)


def _existing(output: Output) -> list[Path]:
    """Shards that are to be replaced; DataError when there are some and that was not asked for."""
    there = sorted(output.folder.glob("*.tar"))
    if not there and not (output.folder / MANIFEST).exists():
        return []
    if not output.overwrite:
        raise DataError(
            f"--out {output.folder} already holds {len(there)} shards and is not overwritten; "
            "choose another folder (each split has its own), or say --overwrite"
        )
    try:
        manifest = read_manifest(str(output.folder))
    except DataError:
        manifest = None
    ours = set(manifest.shards) if manifest else set()
    pattern = re.compile(re.escape(f"{output.name}-{output.split}-") + r"\d{6,}\.tar")
    strange = [path.name for path in there if path.name not in ours and not pattern.fullmatch(path.name)]
    if strange:
        raise DataError(f"--out {output.folder} holds {strange[0]}, which is no shard of this set; choose another folder")
    return there


def _write(
    drafts: Drafts, output: Output, partial: Path, files: Files | None, classes: Sequence[str] | None
) -> tuple[Packed, dict[str, Any]]:
    spool = _Spool(partial / "spool")
    try:
        dropped, names = 0, set()
        positions = array("Q")  # a key is the position in the source, so that a bad sample can be found there
        for position, draft in enumerate(tqdm(drafts, "reading", unit=" samples", **_CALM)):
            if draft is None:
                dropped += 1
                continue
            spool.append(draft)
            positions.append(position)
            if draft.label is not None:
                names.add(draft.label)
        spool.flush()
        if not len(spool):
            raise DataError(f"nothing to pack: the source has no sample that is not empty ({dropped} empty or missing ones)")
        numbers = _class_numbers(names, classes)
        order = permutation(len(spool), seed_of(output.seed, "pack")) if output.shuffle else range(len(spool))
        count = -(-len(spool) // output.shard_size)
        entries = []
        with tqdm(total=len(spool), desc="writing", unit=" samples", **_CALM) as bar:
            for number in range(count):
                part = order[len(spool) * number // count : len(spool) * (number + 1) // count]
                samples = (_sample(spool[int(i)], positions[int(i)], files, numbers) for i in part)
                url = f"{output.name}-{output.split}-{number:06d}.tar"
                entries.append(_write_shard(partial / url, samples, bar.update))
        total = sum(entry["filesize"] for entry in entries)
        record = {
            "__kind__": WIDS_KIND,
            "wids_version": 1,
            "name": output.name,
            "split": output.split,
            "licence": output.licence,
            "source": output.source,
            "nsamples": len(spool),
            "filesize": total,
            "fields": sorted({name for entry in entries for name in entry["fields"]}),
            "classes": list(numbers),
            "order": f"shuffled with seed {output.seed}" if output.shuffle else "as in the source",
            "dropped": dropped,
            "shardlist": entries,
        }
        return Packed(output.folder, len(spool), dropped, count, total, tuple(numbers)), record
    finally:
        spool.close()


_CALM: dict[str, Any] = {
    "mininterval": 1.0,
    "disable": None,
    "leave": False,
    "unit_scale": True,
}  # None: off without a terminal


def _class_numbers(names: set[str], classes: Sequence[str] | None) -> dict[str, int]:
    if classes is not None and names:
        if unknown := sorted(names - set(classes)):
            raise DataError(
                f"class {unknown[0]!r} is not among the given {len(classes)} classes: {', '.join(classes[:10])} ..."
            )
        ordered = list(classes)
    elif all(name.isdecimal() for name in names):
        ordered = sorted(names, key=lambda name: (int(name), name))
    else:
        ordered = sorted(names)
    return {name: number for number, name in enumerate(ordered)}


def _sample(draft: Draft, position: int, files: Files | None, numbers: Mapping[str, int]) -> tuple[str, dict[str, bytes]]:
    fields = dict(draft.fields)
    if draft.file is not None:
        assert files is not None  # who names files says where they are
        extension = draft.file.rpartition(".")[2].lower()
        try:
            fields = {"jpg" if extension == "jpeg" else extension: files.read(draft.file)} | fields
        except OSError as error:
            raise DataError(f"{draft.file} in {files} cannot be read: {error}") from error
    if draft.label is not None:
        fields["cls"] = str(numbers[draft.label]).encode()
    return draft.key or f"{position:08d}", fields


def _write_shard(
    path: Path, samples: Iterator[tuple[str, dict[str, bytes]]], advance: Callable[[int], Any]
) -> dict[str, Any]:
    names: set[str] = set()
    count = 0
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for key, fields in samples:
            for name, value in fields.items():
                member = tarfile.TarInfo(f"{key}.{name}")  # time, owner and rights are constants
                member.size = len(value)
                tar.addfile(member, io.BytesIO(value))
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep every header
            names |= set(fields)
            count += 1
            advance(1)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "url": path.name,
        "nsamples": count,
        "filesize": path.stat().st_size,
        "sha256": digest,
        "fields": sorted(names),
    }


# ------------------------------------------------------------------------------------------------------------- whole sources


def pack_text(paths: Sequence[Path], output: Output) -> Packed:
    """Pack sentences, one a line: see `text_lines` and `pack`."""
    return pack(text_lines(paths), output)


def pack_table(
    path: Path,
    columns: Sequence[str],
    output: Output,
    *,
    label: str | None = None,
    where: Mapping[str, str] | None = None,
    quoted: bool | None = None,
    classes: Sequence[str] | None = None,
) -> Packed:
    """Pack pairs, triples or labelled texts: see `table_rows` and `pack`."""
    return pack(table_rows(path, columns, label=label, where=where, quoted=quoted), output, classes=classes)


def pack_files(
    source: Path,
    extensions: Sequence[str],
    output: Output,
    *,
    root: Path | None = None,
    file: str = "file",
    captions: Sequence[str] = (),
    label: str | None = None,
    where: Mapping[str, str] | None = None,
    quoted: bool | None = None,
    group: bool = False,
    missing: Literal["raise", "skip"] = "raise",
    classes: Sequence[str] | None = None,
) -> Packed:
    """Pack pictures (`decode.IMAGES`) or sounds (`decode.SOUNDS`): a folder of class folders, or a manifest.

    Args:
        source: see `folder_files` and `manifest_files`.
        extensions: kinds of files that are allowed.
        output: where to and how.
        root: folder or tar archive in which the manifest's files lie; none: the manifest's folder.
        file, captions, label, where, quoted, group, missing: see `manifest_files`.
        classes: see `pack`.
    """
    if source.is_dir():
        if captions or label or where or root or group:
            raise DataError(f"{source} is a folder: --captions, --label, --where, --root and --group belong to a manifest")
        return pack(folder_files(source, extensions), output, FolderFiles(source), classes)
    if not source.exists():
        raise DataError(f"{source} does not exist; give a folder (class = subfolder) or a manifest (.csv, .tsv, .jsonl)")
    if root is not None and not root.exists():
        raise DataError(f"--root {root} does not exist")
    place = root or source.parent
    files: Files = FolderFiles(place) if place.is_dir() else TarFiles(place)
    drafts = manifest_files(
        source,
        extensions,
        files,
        file=file,
        captions=captions,
        label=label,
        where=where,
        quoted=quoted,
        group=group,
        missing=missing,
    )
    return pack(drafts, output, files, classes)


def pack_images(source: Path, output: Output, **options: Any) -> Packed:
    """Pack pictures: see `pack_files`."""
    return pack_files(source, IMAGES, output, **options)


def pack_audio(source: Path, output: Output, **options: Any) -> Packed:
    """Pack sounds: see `pack_files`."""
    return pack_files(source, SOUNDS, output, **options)
