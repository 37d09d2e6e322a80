"""Sets of shards, their `dataset.json`, and samples by position.

A shard is a tar file (`tar.py`) or a table (`tables.py`): two forms of samples. A `dataset.json` next to the shards
(`data/shard_writer.py` writes it; it is also an index of the `wids` library) contains the number of samples per shard, so
that a run is planned without opening them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any

from multicse.data import limits, tables, tar
from multicse.data.errors import DataError
from multicse.data.remote import Denied, call_storage, is_remote
from multicse.data.shard_urls import checksum as checksum_of
from multicse.data.shard_urls import expand, file_name, filesystem, split_options, table_kind

log = logging.getLogger(__name__)

MANIFEST = "dataset.json"
WIDS_KIND = "wids-shard-index-v1"
Form = tar.Tar | tables.Table
"""A file of samples by number: `read` yields key and fields of each, or why it cannot be used."""
_FEW = 32  # samples that are read together if their size is unknown


@dataclass(frozen=True)
class Shard:
    """One tar file, or a table."""

    url: str
    samples: int
    bytes: int
    sha256: str | None = None
    fields: tuple[str, ...] = ()
    """Fields of its samples; empty if unknown."""

    @property
    def name(self) -> str:
        """Return the file name without `.tar` or `.parquet`, which identifies samples independent of the folder."""
        return file_name(self.url).removesuffix(".parquet").removesuffix(".tar")


@dataclass(frozen=True)
class RawSample:
    """The undecoded fields of one sample."""

    key: str
    shard: str
    fields: dict[str, Any] = field(repr=False)
    """Bytes of files by their extension, and values of a table (texts, numbers, lists, ...) by their column."""


@dataclass(frozen=True)
class BadSample:
    """Position of a shard where no sample can be read."""

    key: str
    """Key of the sample; `#position` if the key cannot be read."""
    shard: str
    reason: str


@dataclass(frozen=True)
class ShardSet:
    """The shards of a stream, in order."""

    shards: tuple[Shard, ...]
    name: str = ""
    licence: str = ""
    source: str = ""
    languages: tuple[str, ...] = ()
    """Codes of the languages of its texts, as far as `dataset.json` names them."""
    classes: tuple[str, ...] = ()
    """Names of the classes by the integers of the field `cls`; empty if unknown."""
    first: int | None = None
    """Number of samples that are used, from the start. If None, all are used."""
    parts: tuple[int, ...] = ()
    """Number of shards of each of several sets that are mixed by weight; empty for a single set."""

    @cached_property
    def counts(self) -> list[int]:
        """Return the number of samples of each shard that are used."""
        ends = list(accumulate((shard.samples for shard in self.shards), initial=0))
        most = ends[-1] if self.first is None else self.first
        return [min(end, most) - min(start, most) for start, end in pairwise(ends)]

    @cached_property
    def samples(self) -> int:
        """Return the number of samples that are used."""
        return sum(self.counts)

    @property
    def bytes(self) -> int:
        """Return the size of all shards in bytes."""
        return sum(shard.bytes for shard in self.shards)

    @cached_property
    def digest(self) -> str:
        """Return 16 hexadecimal digits of a hash of the shards' names, counts, sizes and hashes, but not of their place."""
        parts = [[shard.name, shard.samples, shard.bytes, shard.sha256] for shard in self.shards]
        return hashlib.sha256(json.dumps([parts, self.first]).encode()).hexdigest()[:16]

    @property
    def fields(self) -> tuple[str, ...]:
        """Return every field of some sample; empty if unknown."""
        return tuple(sorted({name for shard in self.shards for name in shard.fields}))

    def sample(self, number: int) -> RawSample | BadSample:
        """Return the sample of this number, counted from 0 through all shards. Raises DataError as `read`."""
        shard = bisect_right(self._ends, number)
        return next(read(self.shards[shard], [number - (self._ends[shard] - self.counts[shard])]))

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.counts))

    @classmethod
    def open(cls, urls: str | Sequence[str]) -> ShardSet:
        """Return the shards that `urls` names (see `expand`), counted by their `dataset.json`, otherwise by their headers.

        Raises:
            DataError: If nothing is found, a shard is missing or is not a tar or table, a `dataset.json` cannot be
                understood, or the shards contain no samples.
        """
        found, folders = expand(urls)
        places = [split_options(url)[0].rpartition("/") for url in found]
        manifests = {folder: read_manifest(folder) for folder in dict.fromkeys(folder for folder, _, _ in places)}
        present = defaultdict[str, set[str]](set)
        for folder, _, name in places:
            present[folder].add(name)
        for folder in folders:
            if (manifest := manifests.get(folder)) is not None:
                _check_complete(manifest, present[folder])
        shards = []
        for url, (folder, _, name) in zip(found, places, strict=True):
            manifest = manifests[folder]
            listed = manifest.shards.get(name) if manifest else None
            shards.append(scan(url) if listed is None else listed if listed.url == url else replace(listed, url=url))
        used = [manifest for manifest in manifests.values() if manifest is not None]
        shard_set = cls(
            tuple(shards),
            name="+".join(dict.fromkeys(manifest.name for manifest in used if manifest.name)),
            licence="; ".join(dict.fromkeys(manifest.licence for manifest in used if manifest.licence)),
            source="; ".join(dict.fromkeys(manifest.source for manifest in used if manifest.source)),
            languages=tuple(dict.fromkeys(str(one.record["language"]) for one in used if one.record.get("language"))),
            classes=_same_classes(used),
        )
        if not shard_set.samples:
            empty = "the tables have no rows; give others" if all(table_kind(url) for url in found) else "pack them again"
            raise DataError(f"the {len(shards)} shards of {urls!r} contain no samples; {empty}")
        return shard_set


@dataclass(frozen=True)
class Manifest:
    """A `dataset.json`."""

    folder: str
    shards: dict[str, Shard]
    """Shards by file name."""
    name: str
    licence: str
    source: str
    classes: tuple[str, ...]
    record: dict[str, Any] = field(repr=False, default_factory=dict)
    """Content of the file."""


def read_manifest(folder: str) -> Manifest | None:
    """Return the `dataset.json` of a folder, or None if it does not exist. Raises DataError if it is damaged."""
    where = f"{folder}/{MANIFEST}"
    fs, path = filesystem(where)
    try:
        if (size := call_storage(where, partial(fs.size, path))) and size > limits.MANIFEST:
            raise DataError(f"{where} has {limits.over('MANIFEST', size, limits.MANIFEST)} bytes")
        text = call_storage(where, partial(fs.cat_file, path))
    except (FileNotFoundError, PermissionError, Denied):  # a bucket that may not be listed denies what does not exist
        return None
    try:
        record = json.loads(text)
        shards = {}
        known: dict[tuple[str, ...], tuple[str, ...]] = {}
        for entry in record["shardlist"]:
            name, samples = entry["url"].rpartition("/")[2], entry["nsamples"]
            if type(samples) is not int or not 0 <= samples <= limits.MEMBERS:
                raise ValueError(f"nsamples of {name} is {samples!r}, not 0 to {limits.MEMBERS:,}")
            size, digest, fields = entry.get("filesize", -1), entry.get("sha256"), tuple(entry.get("fields", ()))
            shards[name] = Shard(f"{folder}/{name}", samples, size, digest, known.setdefault(fields, fields))
        classes = tuple(str(name) for name in record.get("classes") or ())
        name, split, licence, source = (str(record.get(key) or "") for key in ("name", "split", "licence", "source"))
        return Manifest(folder, shards, "-".join(filter(None, (name, split))), licence, source, classes, record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{where} is not a list of shards ({type(error).__name__}: {error}); pack the shards again, "
            "or delete it, so that they are counted by reading them"
        ) from error


def _check_complete(manifest: Manifest, present: set[str]) -> None:
    folder = manifest.folder
    missing = sorted(set(manifest.shards) - present)
    if missing:
        raise DataError(
            f"{folder}: {MANIFEST} lists {len(manifest.shards)} shards, but {_brief(missing)} cannot be found; "
            "copy the complete folder, or name the shards to read"
        )


def _same_classes(manifests: list[Manifest]) -> tuple[str, ...]:
    named = {manifest.classes: manifest.folder for manifest in manifests if manifest.classes}
    if len(named) > 1:
        (first, one), (second, other) = list(named.items())[:2]
        raise DataError(
            f"{one} and {other} give the same class numbers to different names ({_brief(first)} and {_brief(second)}); "
            "pack the second with the first's classes (--classes-from), or read them as two streams"
        )
    return next(iter(named), ())


def _brief(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def scan(url: str) -> Shard:
    """Count a shard by reading its headers. Samples at its end that cannot be read count as bad samples."""
    if table_kind(url):
        table = tables.table(url)
        return Shard(url, table.samples, table.bytes, None, table.columns.shown)
    index = tables.readable(url, lambda: tar.index_of(url, checksum_of(url)))
    if index.unused[0]:
        log.warning("%s: %d files belong to no sample, being hidden or without extension; the first: %s", url, *index.unused)
    fields = {name for members in index.members for name, _, _ in members}
    return Shard(url, len(index.keys) + index.lost, index.size, None, tuple(sorted(fields)))


def size_and_sha256(url: str) -> tuple[int, str]:
    """Return the bytes of a local or remote file and their hash. Raises OSError and StoreError."""
    fs, path = filesystem(url)

    def hashed() -> tuple[int, str]:
        size, digest = 0, hashlib.sha256()
        with fs.open(path, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
                size += len(block)
        return size, digest.hexdigest()

    return call_storage(url, hashed)


@lru_cache(maxsize=4096)
def _other_size(shard: Shard, checksum: str) -> str | None:
    """Return how the size of a file differs from its entry in `dataset.json`; None if it does not, or if none is given.

    ``describe.py --verify`` also compares the hashes. `checksum` lets a changed file be looked at again.
    """
    fs, path = filesystem(shard.url)
    size = fs.size(path)
    if shard.bytes < 0 or size in (None, shard.bytes):
        return None
    return f"{shard.url} has {size:,} bytes, but {shard.bytes:,} in its {MANIFEST}; copy it again, or pack it again"


def read(shard: Shard, indexes: Sequence[int]) -> Iterator[RawSample | BadSample]:
    """Yield the samples at the given positions, one per position.

    A position that cannot be read gives a BadSample: in a truncated or damaged tar, if a field occurs twice, and everywhere
    in a file with another size than in its `dataset.json`.

    Args:
        shard: Shard.
        indexes: Positions in the order of the shard, from 0; ascending positions are read fastest. About 32 MB of a remote
            store are read, and after an error read again, together.

    Raises:
        DataError: If the shard cannot be opened, is not a tar, or contains more samples than in its `dataset.json`.
        StoreError: If the remote store does not answer.
    """
    if not is_remote(shard.url):
        with tables.data_errors(shard.url):
            yield from _read(shard, indexes)
        return
    at_once = _FEW if shard.bytes <= 0 else min(tables.READ_AT_ONCE, max(1, tar.READ_BYTES * shard.samples // shard.bytes))
    for start in range(0, len(indexes), at_once):
        part = indexes[start : start + at_once]
        yield from tables.readable(shard.url, lambda: list(_read(shard, part)))  # noqa: B023  # called at once


def _read(shard: Shard, indexes: Sequence[int]) -> Iterator[RawSample | BadSample]:
    checksum, name = checksum_of(shard.url), shard.name
    if (wrong := _other_size(shard, checksum)) is not None:
        yield from (BadSample(f"#{position}", name, wrong) for position in indexes)
        return
    form: Form
    form = tables.opened(shard.url, checksum) if table_kind(shard.url) else tar.opened(shard.url, shard.samples, checksum)
    for key, found in form.read(indexes):
        yield BadSample(key, name, found) if isinstance(found, str) else RawSample(key, name, found)
