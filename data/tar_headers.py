"""The members of a tar file one after the other: name, place and size, believing no header more than is safe.

tarfile reads what a hostile header asks for: sizes below zero (it then never ends), extended headers of gigabytes, regular
expressions over them. So its reading of one block is used, which checks the block's sum, and nothing else of it.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, NamedTuple

from multicse.data import limits

BLOCK = tarfile.BLOCKSIZE
PADDING = 2 * tarfile.RECORDSIZE  # zeros at the end: two blocks, and what fills the last record
_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_WITHOUT_DATA = (
    tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE
)  # fmt: skip


class Damage(Exception):
    """From here on the file cannot be read; the text says why and at which byte."""


class Member(NamedTuple):
    """A file in a tar."""

    name: str
    """Bytes that are not UTF-8 are lone surrogates, as in `os.fsdecode`."""
    offset: int
    size: int
    sparse: bool
    """Its data is stored in a form that is not read here."""


def members(file: IO[bytes], size: int) -> Iterator[Member]:
    """The regular files of a tar of `size` bytes, in their order; the last may reach beyond the end of a truncated one.

    Raises:
        Damage: a header that is damaged or asks for too much, data that ends before its end mark, or that goes on behind it.
    """
    place, own = 0, _Extended()
    while True:
        file.seek(place)
        block = file.read(BLOCK)
        if len(block) < BLOCK:
            raise Damage("the shard is truncated: it has no end mark")
        if not block.strip(b"\0"):
            return _check_end(file, place, size)
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError, OverflowError) as error:
            raise Damage(f"the shard is damaged or truncated at byte {place} ({error})") from None
        length = header.size if own.size is None or header.type in (*_NAMES, *_EXTENDED) else own.size
        if length < 0:
            raise Damage(f"the shard is damaged at byte {place}: a member of {length} bytes")
        start = place + BLOCK
        if header.type in (*_NAMES, *_EXTENDED):
            if length > limits.HEADER:
                raise Damage(f"the header at byte {place} has {limits.over('HEADER', length, limits.HEADER)} bytes")
            own = own.with_record(header.type, file.read(length), place)
        else:
            sparse = own.sparse or header.type == tarfile.GNUTYPE_SPARSE
            more = bool(block[482]) if header.type == tarfile.GNUTYPE_SPARSE else False
            while more:  # further maps of holes before the data
                block = file.read(BLOCK)
                start, more = start + BLOCK, len(block) == BLOCK and bool(block[504])
            if header.isreg():
                yield Member(own.name.rstrip("/") or header.name, start, length, sparse)
            own = _Extended()
            length = 0 if header.type in _WITHOUT_DATA else length
        place = start + -(-length // BLOCK) * BLOCK
        if place > size:
            raise Damage(f"the shard is damaged or truncated at byte {size}: a member goes on to byte {start + length}")


def _check_end(file: IO[bytes], place: int, size: int) -> None:
    """A block of zeros ends a tar; what follows is zeros that fill a record. Else a header was lost."""
    at = place + BLOCK
    while rest := file.read(2**20):
        if rest.strip(b"\0"):
            raise Damage(f"the shard is damaged at byte {place}: zeros, and behind them data from about byte {at}")
        at += len(rest)
    if size - place > PADDING:
        raise Damage(
            f"the shard is damaged at byte {place}: {size - place:,} zeros, where an end mark has {PADDING:,} at most"
        )


class _Extended(NamedTuple):
    """What headers before a member's own say of it."""

    name: str = ""
    size: int | None = None
    sparse: bool = False

    def with_record(self, kind: bytes, content: bytes, place: int) -> _Extended:
        if kind == tarfile.GNUTYPE_LONGNAME:
            return self._replace(name=_name(content.partition(b"\0")[0], place))
        if kind in (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE):  # of a link; of all members, which no writer of shards uses
            return self
        found = self
        for keyword, value in _records(content, place):
            if keyword == b"path":
                found = found._replace(name=_name(value, place))
            elif keyword == b"size":
                if not value.isdigit() or len(value) > 20:
                    raise Damage(f"the shard is damaged at byte {place}: a size of {value[:20]!r}")
                found = found._replace(size=int(value))
            elif keyword.startswith(b"GNU.sparse"):
                found = found._replace(sparse=True)
        return found


def _name(content: bytes, place: int) -> str:
    if len(content) > limits.NAME:
        raise Damage(f"the shard is damaged at byte {place}: a name of {len(content):,} bytes")
    return content.decode("utf-8", "surrogateescape")


def _records(content: bytes, place: int) -> Iterator[tuple[bytes, bytes]]:
    """Keyword and value of the records ``LENGTH KEYWORD=VALUE\\n`` of a pax header (POSIX.1-2008)."""
    at = 0
    while at < len(content) and content[at]:
        digits = content[at : at + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record = content[at : at + length]
        keyword, equals, value = record[len(digits) + 1 :].partition(b"=")
        if len(record) < length or not equals or not value.endswith(b"\n"):
            raise Damage(f"the extended header at byte {place} is damaged")
        yield keyword, value[:-1]
        at += length
