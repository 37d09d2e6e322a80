"""Writing of shards: `NAME-SPLIT-000000.tar`, ... and a `dataset.json` next to them, which `data/shards.py` reads.

The source is first read into a spool file, with two positions per sample in memory; then the samples are written
in a seeded order. Equal input, seed and names give equal bytes with any number of processes.
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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from multicse.data.errors import DataError, command
from multicse.data.order import permutation, seed_of
from multicse.data.remote import retry
from multicse.data.shards import MANIFEST, WIDS_KIND, Manifest, read_manifest, size_and_sha256
from multicse.data.tables import KEY
from multicse.data.tar import read_headers
from multicse.data.tar_index import ENDING

SMALL = 100e6
"""Bytes of a packed folder up to which it is copied to the storage automatically: Ray's limit for files of a job."""
_PARTIAL = ".partial"
_CALM: dict[str, Any] = {"mininterval": 1.0, "disable": None, "leave": False, "unit_scale": True}  # no bar in a log file


@dataclass(frozen=True)
class UnpackedSample:
    """A sample of a source, before it is packed."""

    fields: dict[str, bytes] = field(default_factory=dict)
    """Fields with their content."""
    file: str | None = None
    """Source file that is copied unchanged; its extension names the field."""
    label: str | None = None
    """Name of the class; it becomes the integer field `cls`."""
    key: str = ""
    """Replaces the position in the source as the sample's key."""


@dataclass(frozen=True)
class LeftOut:
    """Files, rows or lines of a source that become no samples."""

    why: str
    name: str
    """Name of the first."""
    count: int = 1


Form = Literal["parquet", "tar"]
Drafts = Iterable[UnpackedSample | LeftOut]
"""Samples of a source in its order."""


@dataclass(frozen=True)
class Parts:
    """Source that several processes read."""

    of: Sequence[Callable[[], Drafts]]
    """Functions that yield the samples of each part, in order."""


@dataclass(frozen=True)
class Target:
    """Folder, names, sizes and description of the shards."""

    folder: Path
    name: str
    split: str = "train"
    shard_size: int = 10_000
    """Maximum number of samples in a shard; shards are filled evenly."""
    shuffle: bool = True
    seed: int = 0
    licence: str = "unknown"
    source: str = "unknown"
    overwrite: bool = False
    language: str = ""
    form: Form = "tar"
    """Parquet shards contain texts and classes only."""
    workers: int = 1
    """Processes that read and write."""


def pack(
    drafts: Drafts | Parts, target: Target, files: Path | None = None, classes: Sequence[str] | None = None
) -> Manifest:
    """Write the samples of a source as shards with a `dataset.json`, which is written last, and return its content.

    Args:
        drafts: Samples, or parts of the source.
        target: Folder, names and sizes.
        files: Folder of the files that drafts name.
        classes: Names of the classes 0, 1, ... of an earlier packed split. Default: the classes that occur, sorted (as
            numbers if all are whole numbers).

    Raises:
        DataError: If there is nothing to pack, the target exists, a class is not in `classes`, or the source raises it.
    """
    _check_target(target)
    target.folder.mkdir(parents=True, exist_ok=True)
    with locked(target.folder):
        old = _existing(target)
        partial = target.folder / _PARTIAL
        shutil.rmtree(partial, ignore_errors=True)  # of a killed run, since this process has the lock
        partial.mkdir()
        try:
            record = _write(drafts, target, partial, files, classes)
            (target.folder / MANIFEST).unlink(missing_ok=True)  # from here on the old shards are no longer described
            for path in old:
                for stale in (path, Path(f"{path}{ENDING}")):
                    stale.unlink(missing_ok=True)
            for name in _files(partial, [entry["url"] for entry in record["shardlist"]]):
                os.replace(partial / name, target.folder / name)
            (partial / MANIFEST).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(partial / MANIFEST, target.folder / MANIFEST)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    manifest = read_manifest(str(target.folder))
    assert manifest is not None  # written above
    return manifest


def _files(folder: Path, shards: Iterable[str]) -> list[str]:
    """Return the names of shards in a folder, each followed by its index if it exists."""
    return [name for shard in shards for name in (shard, f"{shard}{ENDING}") if name == shard or (folder / name).exists()]


def _check_target(target: Target) -> None:
    for what, name in (("name", target.name), ("split", target.split)):
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise DataError(
                f"--{what} {name!r}: letters, digits, '_', '-' and '.' only, since it becomes part of file names"
            )
    if target.shard_size < 1:
        raise DataError(f"--shard-size {target.shard_size}; it must be at least 1 sample")
    if target.workers < 1:
        raise DataError(f"--workers {target.workers}; it must be at least 1 process")
    if target.folder.exists() and not target.folder.is_dir():
        raise DataError(f"--out {target.folder} is a file; give a folder")


@contextlib.contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Lock a folder, so that one process at a time makes shards in it. The lock ends with the process.

    Raises:
        DataError: If another process has the lock and `wait` is False.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    except BlockingIOError as error:
        raise DataError(f"--out {folder}: another process is writing to this folder; wait for it") from error
    finally:
        os.close(handle)


def _existing(target: Target) -> list[Path]:
    """Return the shards that will be replaced. Raises DataError if there are some, without `target.overwrite`."""
    there = sorted([*target.folder.glob("*.tar"), *target.folder.glob("*.parquet")])
    if not there and not (target.folder / MANIFEST).exists():
        return []
    if not target.overwrite:
        raise DataError(
            f"--out {target.folder} already contains {len(there)} shards, which are not overwritten; "
            "choose another folder (one per split), or add --overwrite"
        )
    try:
        manifest = read_manifest(str(target.folder))
    except DataError:
        manifest = None
    ours = set(manifest.shards) if manifest else set()
    pattern = re.compile(re.escape(f"{target.name}-{target.split}-") + r"\d{6,}\.(tar|parquet)")
    strange = [path.name for path in there if path.name not in ours and not pattern.fullmatch(path.name)]
    if strange:
        raise DataError(
            f"--out {target.folder} contains {strange[0]}, which is not a shard of this set; choose another folder"
        )
    return there


@dataclass
class _Spool:
    """Drafts of a part on disk: written once, then read in any order."""

    path: Path
    ends: array = field(default_factory=lambda: array("Q", [0]))
    """End of each draft in the file, where the next one starts."""
    read: int = 0
    """Samples of the source, including samples that were left out."""
    labels: set[str] = field(default_factory=set)
    left_out: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Number of inputs that are left out, and the name of the first, by reason."""


def _spooled(part: Callable[[], Drafts], path: Path) -> _Spool:
    spool = _Spool(path)
    with path.open("wb") as file:
        for draft in tqdm(part(), "reading", unit=" samples", **_CALM):
            if isinstance(draft, LeftOut):
                spool.read += draft.count
                count, first = spool.left_out.get(draft.why, (0, draft.name))
                spool.left_out[draft.why] = count + draft.count, first
                continue
            spool.read += 1
            sizes = {name: len(value) for name, value in draft.fields.items()}
            head = json.dumps([spool.read - 1, sizes, draft.file, draft.label, draft.key]).encode()
            file.write(head + b"\n" + b"".join(draft.fields.values()))
            spool.ends.append(file.tell())
            if draft.label is not None:
                spool.labels.add(draft.label)
    return spool


@dataclass(frozen=True)
class _Samples:
    """Samples of one shard in the spools."""

    spools: list[tuple[Path, int]]
    """Spool of every part, and the position of the part's first sample in the source."""
    spans: np.ndarray
    """(N, 3) int64: number of the spool, first byte, and byte after the last."""
    files: Path | None
    numbers: Mapping[str, int]

    def __iter__(self) -> Iterator[tuple[str, dict[str, bytes]]]:
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(path.open("rb")) for path, _ in self.spools]
            for spool, start, stop in self.spans.tolist():
                record = os.pread(opened[spool].fileno(), stop - start, start)
                yield self._sample(record, self.spools[spool][1])

    def _sample(self, record: bytes, before: int) -> tuple[str, dict[str, bytes]]:
        """Return key and fields of a spooled draft. The default key is the position in the source."""
        head, _, rest = record.partition(b"\n")
        position, sizes, file, label, key = json.loads(head)
        fields, place = {}, 0
        for name, size in sizes.items():
            fields[name] = rest[place : place + size]
            place += size
        if file is not None:
            assert self.files is not None  # callers with drafts that name files specify the folder
            extension = file.rpartition(".")[2].lower()
            try:
                fields["jpg" if extension == "jpeg" else extension] = (self.files / file).read_bytes()
            except OSError as error:
                raise DataError(f"{file} in {self.files} cannot be read: {error}") from error
        if label is not None:
            fields["cls"] = str(self.numbers[label]).encode()
        return key or f"{before + position:08d}", fields


def _write(
    drafts: Drafts | Parts, target: Target, partial: Path, files: Path | None, classes: Sequence[str] | None
) -> dict[str, Any]:
    parts = drafts.of if isinstance(drafts, Parts) else [lambda: drafts]
    several = target.workers > 1
    with ProcessPoolExecutor(target.workers, get_context("spawn")) if several else contextlib.nullcontext() as pool:
        paths = [partial / f"spool-{number}" for number in range(len(parts))]
        together = pool.map if pool is not None and isinstance(drafts, Parts) else map
        spools = list(together(_spooled, parts, paths))
        ends = [np.array(spool.ends, np.int64) for spool in spools]
        spans = np.concatenate([np.stack([np.full(len(e) - 1, i), e[:-1], e[1:]], 1) for i, e in enumerate(ends)])
        begins = list(accumulate((spool.read for spool in spools[:-1]), initial=0))
        total, dropped = len(spans), sum(spool.read for spool in spools) - len(spans)
        left_out: dict[str, tuple[int, str]] = {}
        for why, (number, first) in (found for spool in spools for found in spool.left_out.items()):
            before, name = left_out.get(why, (0, first))
            left_out[why] = before + number, name
        if not total:
            raise DataError("; ".join(["nothing to pack: the source has no sample", *left_out_lines(left_out)]))
        numbers = _class_numbers(set().union(*(spool.labels for spool in spools)), classes)
        order = permutation(total, seed_of(target.seed, "pack")) if target.shuffle else np.arange(total)
        count = -(-total // target.shard_size)
        places = [partial / f"{target.name}-{target.split}-{number:06d}.{target.form}" for number in range(count)]
        cuts = [order[total * number // count : total * (number + 1) // count] for number in range(count)]
        samples = (_Samples(list(zip(paths, begins, strict=True)), spans[cut], files, numbers) for cut in cuts)
        written = (pool.map if pool is not None else map)(_write_shard, places, samples)
        entries = list(tqdm(written, "writing", total=count, unit=" shards", **_CALM))
    return {
        "__kind__": WIDS_KIND,
        "wids_version": 1,
        "name": target.name,
        "split": target.split,
        "licence": target.licence,
        "source": target.source,
        "language": target.language,
        "nsamples": total,
        "filesize": sum(entry["filesize"] for entry in entries),
        "fields": sorted({name for entry in entries for name in entry["fields"]}),
        "classes": list(numbers),
        "order": f"shuffled with seed {target.seed}" if target.shuffle else "as in the source",
        "dropped": dropped,
        "left_out": left_out,
        "shardlist": entries,
    }


def left_out_lines(left_out: Mapping[str, tuple[int, str]]) -> list[str]:
    """Return a line per reason of `left_out` in `dataset.json`: the number of inputs that are left out, and the first."""
    return [
        f"{count:,} left out: {why}" + (f"; the first: {first}" if first else "")  # older entries have no name
        for why, (count, first) in left_out.items()
    ]


def _class_numbers(names: set[str], classes: Sequence[str] | None) -> dict[str, int]:
    if classes is not None:
        if not names:
            raise DataError("--classes-from: the samples have no classes; name their column by --label, or leave it out")
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


def _write_shard(path: Path, samples: Iterable[tuple[str, dict[str, bytes]]]) -> dict[str, Any]:
    names, count = (_write_rows if path.suffix == ".parquet" else _write_tar)(path, samples)
    size, digest = size_and_sha256(str(path))
    return {"url": path.name, "nsamples": count, "filesize": size, "sha256": digest, "fields": sorted(names)}


def _write_tar(path: Path, samples: Iterable[tuple[str, dict[str, bytes]]]) -> tuple[set[str], int]:
    from webdataset.writer import TarWriter  # it imports torch

    names: set[str] = set()
    keys: list[str] = []
    # Time, owner and permissions are constants, so that equal samples are equal bytes.
    with path.open("wb") as file, TarWriter(file, user="", group="", mode=0o644, mtime=0, encoder=False) as tar:
        for key, fields in samples:
            tar.write({"__key__": key, **fields})
            names |= set(fields)
            keys.append(key)
    index = read_headers(str(path))
    if index.faults or len(index.keys) != len(keys):
        place, fault = next(
            iter(index.faults.items()), (0, "it is not read as a separate sample; give each sample another key")
        )
        joined = next((key for key, read in zip_longest(keys, index.keys) if key != read), "")
        raise DataError(f"sample {index.keys[place] if index.faults else joined!r} cannot be packed: {fault}")
    Path(f"{path}{ENDING}").write_bytes(index.to_bytes())
    return names, len(keys)


def _write_rows(path: Path, samples: Iterable[tuple[str, dict[str, bytes]]]) -> tuple[set[str], int]:
    rows = [{KEY: key, **{name: value.decode() for name, value in fields.items()}} for key, fields in samples]
    names = {name for row in rows for name in row} - {KEY}
    columns: dict[str, pa.Array] = {name: pa.array([row.get(name) for row in rows], pa.string()) for name in sorted(names)}
    keys = [row[KEY] for row in rows]
    if all(len(key) == 8 and key.isdecimal() for key in keys):  # positions in the source, which are smaller as numbers
        columns[KEY] = pa.array(map(int, keys), pa.int32())
    else:
        columns[KEY] = pa.array(keys, pa.string())
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=9, use_dictionary=False)
    return names, len(rows)


# ----------------------------------------------------------------------------------------------------------------- upload


def upload(folder: Path, url: str) -> None:
    """Copy the shards of a packed folder to a URL, `dataset.json` last; a repetition repairs an interrupted copy."""
    manifest = read_manifest(str(folder)) if folder.is_dir() else None
    if manifest is None:
        raise DataError(f"{folder} is not a folder of packed shards: it has no {MANIFEST}; pack first ({command('pack')})")
    shared = url.startswith("file:///")
    if not shared and not re.match(r"[a-z0-9+]+://[^/]", url):
        raise DataError(f"{url!r} is not a URL; give one such as s3://bucket/shards/{folder.resolve().name}")
    names = [*_files(folder, sorted(manifest.shards)), MANIFEST]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(f"{folder}: {missing[0]} is listed in {MANIFEST} and does not exist; pack it again")
    try:
        fs, place = fsspec.core.url_to_fs(url.rstrip("/"), **({"auto_mkdir": True} if shared else {}))
        for name in tqdm(names, desc=url, unit="file", leave=False, disable=None):
            retry(partial(fs.put_file, str(folder / name), f"{place}/{name}"))
    except Exception as error:  # of any package for a store
        raise DataError(f"{url} cannot be written: {error}") from None  # whose text may be the URL


def upload_small_shards(shards: str, storage: str) -> str:
    """Return shard URLs with small packed folders of this machine replaced by their copies in a storage.

    The same content is copied once, to STORAGE/shards/DIGEST/NAME. URLs, single files, folders without `dataset.json` and
    large folders are returned unchanged: nodes may share them, or `pack.py upload` copies them.
    """
    pieces = []
    for place in shards.split("::"):
        folder = Path(place)
        manifest = read_manifest(place) if "://" not in place and (folder / MANIFEST).is_file() else None
        files = [folder / name for name in manifest.shards] if manifest else []
        if manifest and sum(file.stat().st_size for file in files if file.is_file()) <= SMALL:
            digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()[:12]  # it lists the shards' digests
            base = storage.partition("?")[0].rstrip("/")  # the options are pyarrow's, and fsspec reads shards
            place = f"{base}/shards/{digest}/{folder.name}"
            if read_manifest(place) is None:
                upload(folder, place)
        pieces.append(place)
    return "::".join(pieces)
