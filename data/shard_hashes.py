"""Whether a shard is still the file that was packed: its size and hash against what `dataset.json` says."""

from __future__ import annotations

import contextlib
import hashlib
import posixpath
from dataclasses import dataclass
from functools import lru_cache, partial

from fsspec.implementations.local import LocalFileSystem

from multicse.data.cache import cache_folder
from multicse.data.remote import call_storage
from multicse.data.shard_urls import filesystem, split_options

MANIFEST = "dataset.json"


@dataclass(frozen=True)
class Shard:
    """One tar file, or a table."""

    url: str
    samples: int
    bytes: int
    sha256: str | None = None
    fields: tuple[str, ...] = ()
    """Fields that its samples have; empty: unknown."""

    @property
    def name(self) -> str:
        """File name without `.tar` or `.parquet`: what its samples are called by, wherever the shard lies."""
        name = posixpath.basename(split_options(self.url)[0]).removesuffix(".parquet")
        return name.partition(".tar")[0]


def size_and_sha256(url: str) -> tuple[int, str]:
    """Bytes of a file, wherever it lies, and their hash, for which all of it is read. Raises OSError and StoreError."""
    return call_storage(url, partial(_hashed, url))


def _hashed(url: str) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    fs, path = filesystem(url)
    with fs.open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def verify_shard(shard: Shard) -> str | None:
    """Return how a file differs from its entry in `dataset.json`; None: it does not, or that has neither size nor sha256.

    Only files of this machine are hashed, once until their size or time changes: a stamp in the cache folder says that it
    was done. Other stores have checksums of their own, and ``describe.py --verify`` hashes what lies there.
    """
    fs, path = filesystem(shard.url)
    return _verified(shard, str(fs.checksum(path)))


@lru_cache(maxsize=4096)
def _verified(shard: Shard, checksum: str) -> str | None:
    fs, path = filesystem(shard.url)
    size, repair = fs.size(path), "copy it again, or pack it again"
    if shard.bytes >= 0 and size is not None and size != shard.bytes:
        return f"{shard.url} has {size:,} bytes, its {MANIFEST} says {shard.bytes:,}; {repair}"
    if shard.sha256 is None or not isinstance(fs, LocalFileSystem):
        return None
    stamp = cache_folder() / "shards" / hashlib.sha256(f"{shard.url} {checksum} {shard.sha256}".encode()).hexdigest()[:32]
    if stamp.exists():
        return None
    _, digest = size_and_sha256(shard.url)
    if digest != shard.sha256:
        return (
            f"{shard.url} is not the file that its {MANIFEST} describes (its sha256 is {digest[:12]}..., there "
            f"{str(shard.sha256)[:12]}...); {repair}"
        )
    with contextlib.suppress(OSError):  # a cache that cannot be written: every process hashes
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    return None
