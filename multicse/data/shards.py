"""Tar files of samples (WebDataset shards): sets of shards, their content, and samples by position.

Consecutive members that share a name up to the first dot are a sample: `cat/01.jpg` and `cat/01.cls` are the fields `jpg`
and `cls` of the sample `cat/01`. A `dataset.json` next to the shards (`data/shard_writer.py` writes it; it is also an index
of the `wids` library) contains the number of samples per shard, so that a run is planned without opening them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tarfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any, Self

from multicse.data import limits, tables
from multicse.data.errors import DataError
from multicse.data.remote import Denied, StoreError, call_storage, is_remote
from multicse.data.shard_urls import checksum as checksum_of
from multicse.data.shard_urls import expand, file_name, filesystem, split_options, table_kind
from multicse.data.tar_index import ENDING, Index, is_header

log = logging.getLogger(__name__)

MANIFEST = "dataset.json"
WIDS_KIND = "wids-shard-index-v1"
_EXTENDED = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE
)  # fmt: skip
_READ_BYTES = 2**25  # bytes of a tar that are read together, about
_GAP = 2**14  # bytes between two files of a tar up to which they are read in one request
_lied: set[Shard] = set()  # shards with headers that differ from their index
_FEW = 32  # samples that are read together if their size is unknown
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"PK\3\4": "zip"}
_PADDING = 2 * tarfile.RECORDSIZE  # zeros at the end of a tar, at most: two blocks, and the rest of the last record


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
    fields: dict[str, bytes] = field(repr=False)


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
        rows, size, names = tables.readable(url, partial(tables.scan, url))
        return Shard(url, rows, size, None, names)
    index = tables.readable(url, lambda: index_of(url, checksum_of(url)))
    if index.unused[0]:
        log.warning("%s: %d files belong to no sample, being hidden or without extension; the first: %s", url, *index.unused)
    fields = {name for members in index.members for name, _, _ in members}
    return Shard(url, len(index.keys) + index.lost, index.size, None, tuple(sorted(fields)))


@lru_cache(maxsize=16)  # some megabytes each for text; a rank reads one or two shards at a time
def packed_index(shard: Shard, checksum: str) -> Index | None:
    """Return the index that packing has written next to a shard; None if it does not exist or is of another shard.

    Args:
        shard: Shard.
        checksum: Checksum of its size and time, so that a changed shard is read again.

    Raises:
        StoreError: If a remote store does not answer.
    """
    if "?" in shard.url:  # a signature is valid for one file
        return None
    where, (fs, path) = shard.url + ENDING, filesystem(shard.url)
    try:
        content = call_storage(where, partial(fs.cat_file, path + ENDING, start=0, end=limits.MANIFEST))
        index = Index.from_bytes(content)
    except (FileNotFoundError, PermissionError, Denied):  # a bucket that may not be listed denies what does not exist
        return None
    except StoreError:
        raise
    except DataError as error:
        log.warning("%s: %s; the headers of the shard are read instead", where, error)
        return None
    if not index.fits(shard.samples, fs.size(path)):
        log.warning("%s is of another shard; the headers of this one are read instead", where)
        return None
    return index


@lru_cache(maxsize=16)
def index_of(url: str, checksum: str) -> Index:
    """Return positions, offsets and damage of the samples of a shard, from its headers.

    The cache folder keeps the index until the file or a limit changes.

    Args:
        url: Shard.
        checksum: Checksum of its size and time.

    Raises:
        DataError: If it is not a tar file, or is compressed.
        OSError: If it cannot be read.
    """
    most = f"{limits.MEMBERS} {limits.FIELDS} {limits.MEMBER} {limits.HEADER}"
    place = limits.cache_path("indexes", f"1 {most} {url} {checksum}")  # 1: the form

    def write(path: Path) -> None:
        path.write_bytes(read_headers(url).to_bytes())

    try:
        return limits.cached(place, write, lambda path: Index.from_bytes(path.read_bytes()))
    except DataError:  # the cache cannot be written, or the index is too large to be loaded; other errors occur again
        return read_headers(url)


def read_headers(url: str) -> Index:
    """Return the index of a tar file. Raises DataError for other files, OSError if it cannot be read."""
    fs, path = filesystem(url)
    with fs.open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(6)
        if tool := next((tool for start, tool in _COMPRESSED.items() if head.startswith(start)), None):
            raise DataError(
                f"shard {url} is compressed by {tool}; shards are plain .tar files, since samples are read by position: "
                "uncompress it (its images and audio are compressed already)"
            )
        if not size:
            return Index([], [], {}, "the shard is empty (0 bytes)", 1, 0)
        return _indexed(url, file, size)


def _indexed(url: str, file: IO[bytes], size: int) -> Index:
    keys: list[str] = []
    members: list[tuple[tuple[str, int, int], ...]] = []
    faults: dict[int, str] = {}
    tail: str | None = None
    end = count = 0
    unused = (0, "")
    try:
        for count, member in enumerate(_members(file, size), 1):
            if count > limits.MEMBERS:
                raise DataError(f"shard {url} contains {limits.over('MEMBERS', count, limits.MEMBERS)} files")
            if (parts := _key_and_field(member.name)) is None:
                if _is_utf8(member.name):
                    unused = unused[0] + 1, unused[1] or member.name
                    continue
                parts = _printable(member.name), ""
            key, name = parts
            if not keys or keys[-1] != key:
                keys.append(key)
                members.append(())
            position = len(keys) - 1
            if len(members[-1]) >= limits.FIELDS:
                more = limits.over("FIELDS", len(members[-1]) + 1, limits.FIELDS)
                faults[position] = f"it has {more} files, since its name ends at the first dot of the names of its files"
                continue
            if (fault := _fault(member, name, [other for other, _, _ in members[-1]], size)) is not None:
                faults[position] = fault
            if member.offset_data + member.size <= size:
                end = member.offset_data + member.size
            members[-1] = (*members[-1], (name, member.offset_data, member.size))
    except _Damage as error:
        if not count:
            raise DataError(f"shard {url} is not a tar file ({error}); copy it again, or pack it again") from None
        tail = str(error)
    names = [{name for name, _, _ in sample} for sample in (members[0], members[-1])] if keys else []
    if tail and keys and (len(keys) == 1 or names[0] != names[1]):
        faults.setdefault(len(keys) - 1, tail)  # the rest of this sample is lost
    if len(set(keys)) < len(keys):
        faults = _scattered(keys, members) | faults
    # After the damage there are about as many samples per byte as before it.
    behind = round(len(keys) * max(0, size - end) / end) if tail and end else 0
    reported = tail is None or len(keys) - 1 in faults
    return Index(keys, members, faults, tail, behind if reported else max(1, behind), size, unused)


def _scattered(keys: Sequence[str], members: Sequence[tuple[tuple[str, int, int], ...]]) -> dict[int, str]:
    """Return the positions of samples with members in several places of a tar, and the remedy.

    Runs of members with the same key and a common field are several samples.
    """
    places: dict[str, dict[int, set[str]]] = {}
    for position, key in enumerate(keys):
        places.setdefault(key, {})[position] = {name for name, _, _ in members[position]}
    wrong = "its files are not next to each other in the tar; pack them in the order of their names (tar --sort=name)"
    split = [found for found in places.values() if any(a.isdisjoint(b) for a, b in pairwise(found.values()))]
    return {position: wrong for found in split for position in found}


def _fault(member: tarfile.TarInfo, field: str, others: Sequence[str], size: int) -> str | None:
    """Return why a member of a tar of `size` bytes cannot be used as this field of its sample, or None if it can."""
    if not member.isreg():
        target = _printable(member.linkname)
        return f"the field {field!r} is a link to {target!r}; pack the file itself (tar --dereference --hard-dereference)"
    if member.issparse():
        return f"the field {field!r} is stored as a sparse file"
    if member.offset_data + member.size > size:
        return f"the shard is truncated within the field {field!r}"
    if member.size > limits.MEMBER:
        return f"the field {field!r} has {limits.over('MEMBER', member.size, limits.MEMBER)} bytes"
    if field in others:
        return f"the field {field!r} occurs twice in one sample"
    return None if _is_utf8(member.name) else "its name is not UTF-8"


class _Damage(Exception):
    """Damage after which a tar file cannot be read; the text names cause and byte."""


class _Header(tarfile.TarInfo):
    """Header of a tar member with safe sizes: tarfile itself accepts any size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header. Raises ValueError for a negative size, or an extended header that is too large."""
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0:  # tarfile would read the same members forever
            raise ValueError(f"a member of {header.size} bytes")
        if header.type in _EXTENDED and header.size > limits.HEADER:
            raise ValueError(f"an extended header of {limits.over('HEADER', header.size, limits.HEADER)} bytes")
        return header

    # `_fault` refuses sparse files, so their maps are not read: a map may be as long as the shard.

    def _proc_sparse(self, tar: Any) -> Self:
        """Skip the map of GNU's old form, which continues in blocks between header and data."""
        _, extended, size = self._sparse_structs  # type: ignore[attr-defined]  # not in typeshed
        while extended:
            extended = tar.fileobj.read(tarfile.BLOCKSIZE)[504:505].strip(b"\0")
        self.sparse = []  # type: ignore[assignment]  # a list, unlike in typeshed
        self.offset_data = tar.fileobj.tell()
        tar.offset = self.offset_data + -(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        self.size = size
        return self

    def _proc_gnusparse(self, member: Any, *_: object) -> None:
        """Mark a member of pax's forms, with maps in the extended header or at the start of the data."""
        member.sparse = []

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _proc_gnusparse


def _members(file: IO[bytes], size: int) -> Iterator[tarfile.TarInfo]:
    """Yield the files and links of a tar of `size` bytes in order; the last may extend beyond the end of a truncated one.

    Raises _Damage if a header is damaged or above a limit, or data ends before the end mark or continues after it.
    """
    place = file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_Header, encoding="utf-8") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # otherwise it keeps all of them
                if member.size < 0:
                    raise ValueError(f"a member of {member.size} bytes")
                if "\0" in member.name:
                    raise ValueError("a name with zero bytes")
                if member.isreg() or member.islnk() or member.issym():
                    yield member
                if tar.offset > size:
                    raise ValueError(f"a member continues to byte {tar.offset}")
                place = tar.offset
            _check_end(file, tar.offset, size)
    except (tarfile.TarError, ValueError, OverflowError, LookupError, RecursionError) as error:  # all that tarfile raises
        raise _Damage(f"the shard is damaged or truncated at byte {place} ({error})") from None


def _check_end(file: IO[bytes], place: int, size: int) -> None:
    """Require the end mark of a tar: a block of zeros, and after it only zeros that fill a record. tarfile requires none."""
    file.seek(place)
    first = file.read(tarfile.BLOCKSIZE)
    if len(first) < tarfile.BLOCKSIZE:
        raise ValueError("no end mark")
    if first.strip(b"\0"):
        raise ValueError("no header")
    while rest := file.read(2**20):
        if rest.strip(b"\0"):
            raise ValueError("zeros, followed by data")
    if size - place > _PADDING:
        raise ValueError(f"{size - place:,} zeros, more than the {_PADDING:,} of an end mark")


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)  # tarfile's form of other bytes


def _key_and_field(name: str) -> tuple[str, str] | None:
    """Split the path of a file at the first dot of its name, as WebDataset does; None if hidden or without extension."""
    folder, _, base = name.removeprefix("./").rpartition("/")
    stem, dot, extension = base.partition(".")
    if not stem or not dot or not extension:
        return None
    key = f"{folder}/{stem}" if folder else stem
    return _printable(key), extension.lower()


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


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
        indexes: Positions in the order of the tar, from 0; ascending positions are read fastest. About 32 MB of a remote
            store are read, and after an error read again, together.

    Raises:
        DataError: If the shard cannot be opened, is not a tar, or contains more samples than in its `dataset.json`.
        StoreError: If the remote store does not answer.
    """
    if not is_remote(shard.url):
        with tables.data_errors(shard.url):
            yield from _read(shard, indexes)
        return
    at_once = _FEW if shard.bytes <= 0 else min(tables.READ_AT_ONCE, max(1, _READ_BYTES * shard.samples // shard.bytes))
    for start in range(0, len(indexes), at_once):
        part = indexes[start : start + at_once]
        yield from tables.readable(shard.url, lambda: list(_read(shard, part)))  # noqa: B023  # called at once


def _read(shard: Shard, indexes: Sequence[int]) -> Iterator[RawSample | BadSample]:
    fs, path = filesystem(shard.url)
    checksum = checksum_of(shard.url)
    wrong = _other_size(shard, checksum)
    if table_kind(shard.url):
        unread = ((f"{position:08d}", wrong) for position in indexes)
        for key, found in unread if wrong is not None else tables.read(shard.url, indexes):
            yield RawSample(key, shard.name, found) if isinstance(found, dict) else BadSample(key, shard.name, str(found))
        return
    index = None if shard in _lied else packed_index(shard, checksum)
    is_packed = index is not None
    if index is None:
        index = index_of(shard.url, checksum)
    if wrong is None and len(index.keys) > shard.samples:
        raise DataError(
            f"shard {shard.url} contains {len(index.keys)} samples, but {shard.samples} in its {MANIFEST}; "
            "it was changed after it was packed: pack it again, or delete the dataset.json"
        )
    lost = index.tail or f"the shard is truncated: {len(index.keys)} of {shard.samples} samples are left"
    done = 0
    for part in _parts(index, indexes):
        good = [place for place in part if wrong is None and place < len(index.keys) and place not in index.faults]
        members = [(index.keys[place], *member) for place in good for member in index.members[place]]
        views = _fetch(fs, path, [(offset - tarfile.BLOCKSIZE, offset + size) for _, _, offset, size in members])
        content = dict(zip([offset for _, _, offset, _ in members], views, strict=True))
        if is_packed and not all(is_header(content[at], f"{key}.{name}", size) for key, name, at, size in members):
            log.warning("%s differs from its %s; its headers are read instead", shard.url, ENDING)
            _lied.add(shard)
            yield from _read(shard, indexes[done:])
            return
        for position in part:
            here = position < len(index.keys)
            key = index.keys[position] if here else f"#{position}"
            if bad := wrong or (index.faults.get(position) if here else lost):
                yield BadSample(key, shard.name, bad)
                continue
            fields = {name: bytes(content[offset][tarfile.BLOCKSIZE :]) for name, offset, _ in index.members[position]}
            yield RawSample(key, shard.name, fields)
        done += len(part)


def _parts(index: Index, indexes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the positions in parts of about `_READ_BYTES`, with headers and padding."""
    part: list[int] = []
    size = 0
    for position in indexes:
        part.append(position)
        if 0 <= position < len(index.keys):
            size += sum(2 * tarfile.BLOCKSIZE + size for _, _, size in index.members[position])
        if size >= _READ_BYTES:
            yield part
            part, size = [], 0
    yield part


def _fetch(fs: Any, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
    """Return the bytes of each span (start, stop) of a file. Neighbouring spans are read together."""
    runs: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if runs and start <= runs[-1][1] + _GAP:
            runs[-1] = runs[-1][0], max(runs[-1][1], stop)
        else:
            runs.append((start, stop))
    begins, ends = [start for start, _ in runs], [stop for _, stop in runs]
    blobs = fs.cat_ranges([path] * len(runs), begins, ends, on_error="raise")
    if short := [run for run, blob in zip(runs, blobs, strict=True) if len(blob) != run[1] - run[0]]:
        raise OSError(
            f"received other bytes than {short[0][0]} to {short[0][1]}; the file has changed, or its store reads no ranges"
        )
    views = [memoryview(blob) for blob in blobs]
    where = [bisect_right(begins, start) - 1 for start, _ in spans]
    return [views[run][start - begins[run] : stop - begins[run]] for run, (start, stop) in zip(where, spans, strict=True)]
