"""Limits of inputs, and the cache of files that are made from inputs.

Inputs above a limit are refused as damaged or malicious before memory is allocated. An environment variable,
`MULTICSE_MAX_` and the name, raises a limit on the machine where it is set: ``MULTICSE_MAX_TEXT=1000000``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from multicse.data.errors import DataError

_T = TypeVar("_T")


def _limit(name: str, default: int) -> int:
    given = os.environ.get(f"MULTICSE_MAX_{name}", "")
    if given and not given.isdecimal():
        raise ValueError(f"MULTICSE_MAX_{name}={given!r} is not a whole number")
    return int(given or default)


def over(name: str, size: int | str, most: int) -> str:
    """Return ``1,200, more than the allowed 1,000 (MULTICSE_MAX_MEMBER raises it)``."""
    shown = f"{size:,}" if isinstance(size, int) else size
    return f"{shown}, more than the allowed {most:,} (MULTICSE_MAX_{name} raises it)"


HEADER = _limit("HEADER", 2**14)
"""Bytes of a tar header with a long name or attributes: the longest path of Linux has 4 KiB. For 32 KiB of digits, tarfile
of Python 3.11.9 takes seconds."""
NAME = 2**15
"""Bytes of the path of a file: the longest path of Windows."""
MEMBERS = _limit("MEMBERS", 2**22)
"""Files in a shard. An index of this size takes about a gigabyte; `pack` writes 10,000 samples per shard."""
FIELDS = _limit("FIELDS", 1000)
"""Files of one sample: the largest sets have about ten."""
MEMBER = _limit("MEMBER", 2**30)
"""Bytes of one file in a shard: an hour and a half of uncompressed stereo audio at 48 kHz."""
GROUP = _limit("GROUP", 2**29)
"""Bytes of a row group of a Parquet file, which is read at once, and of a remote Arrow file."""
LINE = _limit("LINE", 2**24)
"""Characters of one line of a text file or table, and of a cell of a table in quotation marks."""
TEXT = _limit("TEXT", 100_000)
"""Characters of one text: a chapter of a book. Tokenizers take some 200 bytes per character of a batch."""
JSON = _limit("JSON", 2**20)
"""Bytes of a sample's JSON, which takes up to thirty times as much memory when it is read."""
CLASS_DIGITS = 19
"""Digits of a class number, which is kept in 64 bits."""
MANIFEST = _limit("MANIFEST", 2**28)
"""Bytes of a dataset.json: a million shards."""
PIXELS = _limit("PIXELS", 89_478_485)
"""Pixels of an image (256 MiB of RGB, the number at which Pillow warns)."""
SOUND_VALUES = _limit("SOUND_VALUES", 2**26)
"""Values of an audio clip, frames times channels, before and after resampling: 23 minutes of 48 kHz mono, 256 MiB."""
PEAK = 4.0
"""Largest absolute value of audio, whose full scale is 1. Mixes that are stored as floats exceed 1 by some decibels, which
are clipped; 4 is 12 dB. Integers that are stored as floats reach thousands, and clipped they would be square waves."""
LOWEST_RATE = 1000
"""Samples per second of audio: telephones have 8,000. A lower number in a header would make a small file huge."""


def cache_path(kind: str, stamp: str) -> Path:
    """Return the path in the cache of something of a `kind` that is made from inputs, which `stamp` identifies.

    The cache is the folder $MULTICSE_CACHE, otherwise $XDG_CACHE_HOME/multicse, otherwise ~/.cache/multicse.
    """
    place = os.environ.get("MULTICSE_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/multicse"
    return Path(place).expanduser() / kind / hashlib.sha256(stamp.encode(errors="surrogateescape")).hexdigest()[:32]


class CacheError(DataError):
    """The cache cannot be written."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert OSErrors in the body, which writes a file or folder of the cache, to CacheError."""
    try:
        yield
    except (OSError, NotImplementedError) as error:  # NotImplementedError: a file system without locks
        raise CacheError(
            f"{path} cannot be written ({error}); set MULTICSE_CACHE to a folder that can be written"
        ) from error


def cached(path: Path, make: Callable[[Path], object], read: Callable[[Path], _T]) -> _T:
    """Return the result of `read` for a file or folder of the cache, which is made first if `read` raises a DataError.

    Other processes wait until it is complete.

    Args:
        path: Path in the cache.
        make: Function that writes the file or folder at its argument. Its OSErrors are reported as errors of the cache.
        read: Function that raises a DataError if the file is missing or incomplete (full disk, loss of power).

    Raises:
        CacheError: If the cache cannot be written.
        DataError: As `make` and `read`.
    """
    with contextlib.suppress(DataError, FileNotFoundError):
        return read(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"), tempfile.TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as scratch:
            with contextlib.suppress(DataError, FileNotFoundError):
                return read(path)
            make(new := Path(scratch) / path.name)
            if path.exists():
                path.rename(Path(scratch) / "cut")
            new.rename(path)
    return read(path)
