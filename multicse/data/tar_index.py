"""Indexes of tar files: positions of their samples.

Packing writes an index next to each shard. Indexes of other shards are in the cache folder.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from tarfile import BLOCKSIZE, NUL, REGTYPE

from multicse.data import limits
from multicse.data.errors import DataError

ENDING = ".index.gz"
"""Ending of an index, after the name of the shard."""
_OTHERS = (ArithmeticError, StopIteration, RecursionError)


@dataclass(frozen=True)
class Index:
    """Positions of the samples of a tar file."""

    keys: list[str]
    members: list[tuple[tuple[str, int, int], ...]]
    """Field, offset and size of every file of every sample."""
    faults: dict[int, str]
    """Positions with a sample that cannot be used, and the reasons."""
    tail: str | None
    """Damage after the last sample, or None."""
    lost: int
    """Approximate number of samples after the damage."""
    size: int
    """Bytes of the tar file."""
    unused: tuple[int, str] = (0, "")
    """Number of files that belong to no sample, since they are hidden or have no extension, and the first."""

    def to_bytes(self) -> bytes:
        """Return gzipped JSON with gaps instead of offsets: the bytes after the previous file, 512 for a header."""
        kinds: dict[tuple[str, ...], int] = {}
        of = [kinds.setdefault(tuple(name for name, _, _ in sample), len(kinds)) for sample in self.members]
        sizes, gaps, end = [], [], 0
        for _, offset, size in (member for sample in self.members for member in sample):
            sizes.append(size)
            gaps.append(offset - end)
            end = offset + _padded(size)
        record = {"keys": self.keys, "kinds": [*kinds], "kind": of, "sizes": sizes, "gaps": gaps}
        record |= {"faults": self.faults, "tail": self.tail, "lost": self.lost, "size": self.size, "unused": self.unused}
        return gzip.compress(json.dumps(record, separators=(",", ":")).encode(), mtime=0)

    @classmethod
    def from_bytes(cls, content: bytes) -> Index:
        """Return the index that `to_bytes` wrote. Offsets outside of the shard are found by `fits`."""
        try:
            stream = zlib.decompressobj(wbits=31)
            text = stream.decompress(content, limits.MANIFEST)
            if not stream.eof:
                raise ValueError("cut short, or too large")
            record = json.loads(text)
            if {*map(type, record["sizes"]), *map(type, record["gaps"])} - {int} or {*map(type, record["keys"])} - {str}:
                raise TypeError("sizes and gaps are whole numbers, keys are texts")
            places = zip(record["sizes"], record["gaps"], strict=True)
            members, end = [], 0
            for kind in record["kind"]:
                sample = []
                for name in record["kinds"][kind]:
                    size, gap = next(places)
                    sample.append((str(name), end + gap, size))
                    end += gap + _padded(size)
                members.append(tuple(sample))
            if len(members) != len(record["keys"]) or next(places, None) is not None:
                raise ValueError("other numbers of keys and samples")
            faults = {int(position): str(fault) for position, fault in record["faults"].items()}
            count, first = record["unused"]
            numbers = (int(record["lost"]), int(record["size"]), (int(count), str(first)))
            return cls(record["keys"], members, faults, record["tail"], *numbers)
        except (zlib.error, ValueError, LookupError, TypeError, AttributeError, *_OTHERS) as error:
            raise DataError(f"not an index of a shard ({type(error).__name__}: {error})") from None

    def fits(self, samples: int, size: int) -> bool:
        """Return whether this can be the index of an undamaged tar of `samples` and `size` bytes without gaps."""
        end = 0
        for sample in self.members:
            for _, offset, length in sample:
                if offset < end + BLOCKSIZE or not 0 <= length <= limits.MEMBER:
                    return False
                end = offset + length
        whole = not self.faults and self.tail is None and max(map(len, self.members), default=0) <= limits.FIELDS
        return whole and len(self.keys) == samples and self.size == size and end <= size


def is_header(block: memoryview, name: str, size: int) -> bool:
    """Return whether a block of a tar is the header, as packing writes it, of a regular file with this name and size."""
    start = name.encode("ascii", "replace")[:100].ljust(100, NUL)  # an extended header before it has the rest
    return block[:100] == start and block[124:136] == b"%011o\0" % size and block[156:157] == REGTYPE


def _padded(size: int) -> int:
    return -(-size // BLOCKSIZE) * BLOCKSIZE
