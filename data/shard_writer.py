"""Drafts -> shards: `NAME-SPLIT-000000.tar`, ... and a `dataset.json` beside them, which `data/shards.py` reads.

Two passes, so that memory stays flat for millions of samples: the source is read once into a spool file, which only keeps a
position per sample in memory; then the samples are written in a seeded order. Equal input, seed and names give equal bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from data.errors import DataError
from data.order import permutation, seed_of
from data.shards import MANIFEST, WIDS_KIND, read_manifest

_PARTIAL = ".partial"
_CALM: dict[str, Any] = {"mininterval": 1.0, "disable": None, "leave": False, "unit_scale": True}  # no bar in a log file


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


class Files(Protocol):
    """Where the files that drafts name lie."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes: ...


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
    language: str = ""


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


class _Spool:
    """Drafts on disk: appended once, then read in any order. Keeps sixteen bytes of memory per draft."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._offsets = array("Q", [0])
        self.positions = array("Q")
        """Where in the source each draft stood: its key, so that a bad sample can be found there."""

    def __len__(self) -> int:
        return len(self.positions)

    def append(self, draft: Draft, position: int) -> None:
        sizes = {name: len(value) for name, value in draft.fields.items()}
        head = json.dumps([sizes, draft.file, draft.label, draft.key]).encode()
        record = head + b"\n" + b"".join(draft.fields.values())
        self._file.write(record)
        self._offsets.append(self._offsets[-1] + len(record))
        self.positions.append(position)

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


def _write(
    drafts: Drafts, output: Output, partial: Path, files: Files | None, classes: Sequence[str] | None
) -> tuple[Packed, dict[str, Any]]:
    with contextlib.closing(_Spool(partial / "spool")) as spool:
        dropped, names = 0, set()
        for position, draft in enumerate(tqdm(drafts, "reading", unit=" samples", **_CALM)):
            if draft is None:
                dropped += 1
                continue
            spool.append(draft, position)
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
                samples = (_sample(spool[int(i)], spool.positions[int(i)], files, numbers) for i in part)
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
            "language": output.language,
            "nsamples": len(spool),
            "filesize": total,
            "fields": sorted({name for entry in entries for name in entry["fields"]}),
            "classes": list(numbers),
            "order": f"shuffled with seed {output.seed}" if output.shuffle else "as in the source",
            "dropped": dropped,
            "shardlist": entries,
        }
        return Packed(output.folder, len(spool), dropped, count, total, tuple(numbers)), record


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
            fields["jpg" if extension == "jpeg" else extension] = files.read(draft.file)
        except OSError as error:
            raise DataError(f"{draft.file} in {files} cannot be read: {error}") from error
    if draft.label is not None:
        fields["cls"] = str(numbers[draft.label]).encode()
    return draft.key or f"{position:08d}", fields


def _write_shard(
    path: Path, samples: Iterator[tuple[str, dict[str, bytes]]], advance: Callable[[int], Any]
) -> dict[str, Any]:
    from webdataset.writer import TarWriter  # it imports torch

    names: set[str] = set()
    count = 0
    # Time, owner and rights are constants, so that equal samples are equal bytes.
    with path.open("wb") as file, TarWriter(file, user="", group="", mode=0o644, mtime=0, encoder=False) as tar:
        for key, fields in samples:
            tar.write({"__key__": key, **fields})
            names |= set(fields)
            count += 1
            advance(1)
    with path.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    size = path.stat().st_size
    return {"url": path.name, "nsamples": count, "filesize": size, "sha256": digest, "fields": sorted(names)}
