"""Tar files as a form of samples: index, headers, damage, and the content of samples by position.

Consecutive members that share a name up to the first dot are a sample: `cat/01.jpg` and `cat/01.cls` are the fields `jpg`
and `cls` of the sample `cat/01`.
"""

from __future__ import annotations

import logging
import tarfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Self

from multicse.data import limits
from multicse.data.errors import DataError
from multicse.data.remote import Denied, StoreError, call_storage
from multicse.data.shard_urls import filesystem
from multicse.data.tar_index import ENDING, Index, is_header

log = logging.getLogger(__name__)

_EXTENDED = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE
)  # fmt: skip
READ_BYTES = 2**25
"""Bytes of a tar that are read together, about."""
_GAP = 2**14  # bytes between two files of a tar up to which they are read in one request
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"PK\3\4": "zip"}
_PADDING = 2 * tarfile.RECORDSIZE  # zeros at the end of a tar, at most: two blocks, and the rest of the last record


class Tar:
    """The form of a tar file, opened by an index that packing wrote, otherwise by its headers.

    Raises DataError if it is not a tar file, or is compressed; OSError if it cannot be read.
    """

    def __init__(self, url: str, checksum: str, packed: Index | None = None) -> None:
        self.url, self._checksum, self._packed = url, checksum, packed is not None
        self.index = packed or index_of(url, checksum)

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield key and fields of the samples at these positions; of a sample that cannot be used, the reason."""
        while numbers:
            part = self._first(numbers)
            if (found := self._samples(part)) is None:
                log.warning("%s differs from its %s; its headers are read instead", self.url, ENDING)
                self._packed, self.index = False, index_of(self.url, self._checksum)
                continue
            yield from found
            numbers = numbers[len(part) :]

    def _first(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return the first positions, with about `READ_BYTES` of headers, content and padding."""
        size = 0
        for count, number in enumerate(numbers, 1):
            if 0 <= number < len(self.index.keys):
                size += sum(2 * tarfile.BLOCKSIZE + size for _, _, size in self.index.members[number])
            if size >= READ_BYTES:
                return numbers[:count]
        return numbers

    def _samples(self, numbers: Sequence[int]) -> list[tuple[str, dict[str, Any] | str]] | None:
        """Return keys and fields; None if a header differs from the index that packing wrote."""
        index, (fs, path) = self.index, filesystem(self.url)
        here = range(len(index.keys))
        good = [at for at in numbers if at in here and at not in index.faults]
        members = [(index.keys[at], *member) for at in good for member in index.members[at]]
        views = _fetch(fs, path, [(offset - tarfile.BLOCKSIZE, offset + size) for _, _, offset, size in members])
        content = dict(zip([offset for _, _, offset, _ in members], views, strict=True))
        if self._packed and not all(is_header(content[at], f"{key}.{name}", size) for key, name, at, size in members):
            return None
        found: list[tuple[str, dict[str, Any] | str]] = []
        for at in numbers:
            if at not in here:
                found.append((f"#{at}", index.tail or f"the shard is truncated: only {len(here)} samples are left"))
            elif at in index.faults:
                found.append((index.keys[at], index.faults[at]))
            else:
                fields = {name: bytes(content[offset][tarfile.BLOCKSIZE :]) for name, offset, _ in index.members[at]}
                found.append((index.keys[at], fields))
        return found


@lru_cache(maxsize=16)  # some megabytes each for text; a rank reads one or two shards at a time
def opened(url: str, samples: int, checksum: str) -> Tar:
    """Open a shard with a known number of samples by the index that packing has written, otherwise by its headers.

    Args:
        url: Shard.
        samples: Number of samples in its `dataset.json`.
        checksum: Checksum of its size and time, so that a changed shard is read again.

    Raises:
        DataError: As `Tar`, and if it contains more samples.
        StoreError: If a remote store does not answer.
    """
    tar = Tar(url, checksum, packed_index(url, samples))
    if len(tar.index.keys) > samples:
        raise DataError(
            f"shard {url} contains {len(tar.index.keys)} samples, but {samples} in its dataset.json; "
            "it was changed after it was packed: pack it again, or delete the dataset.json"
        )
    return tar


def packed_index(url: str, samples: int) -> Index | None:
    """Return the index that packing has written next to a shard; None if it does not exist or is of another shard."""
    if "?" in url:  # a signature is valid for one file
        return None
    where, (fs, path) = url + ENDING, filesystem(url)
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
    if not index.fits(samples, fs.size(path)):
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
