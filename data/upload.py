"""Packed shards to where a cluster can read them: any place that fsspec writes to."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fsspec
from tqdm import tqdm

from multicse.data.errors import DataError, command
from multicse.data.remote import retry
from multicse.data.shards import MANIFEST, read_manifest


@dataclass(frozen=True)
class Uploaded:
    """What was copied."""

    url: str
    files: int
    bytes: int


def upload(folder: Path, url: str) -> Uploaded:
    """Copy the shards of a packed folder to `url` (``s3://bucket/shards/text``), `dataset.json` last.

    So a copy that was cut short is not described as complete; the same command again repairs it. A shard that is there
    already is replaced.

    Raises:
        DataError: no packed folder, no URL, a protocol whose package is not installed, or a place that cannot be written.
    """
    manifest = read_manifest(str(folder)) if folder.is_dir() else None
    if manifest is None:
        raise DataError(f"{folder} is no folder of packed shards: it has no {MANIFEST}; pack first ({command('pack')})")
    if not re.match(r"[a-z0-9+]+://[^/]", url):
        raise DataError(f"{url!r} is no URL; give one such as s3://bucket/shards/{folder.resolve().name}")
    names = [*sorted(manifest.shards), MANIFEST]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(f"{folder}: {missing[0]} is listed in {MANIFEST} and not there; pack it again")
    size = 0
    try:
        fs, place = fsspec.core.url_to_fs(url.rstrip("/"))
        for name in tqdm(names, desc=url, unit="file", leave=False, disable=None):
            retry(partial(fs.put_file, str(folder / name), f"{place}/{name}"))
            size += (folder / name).stat().st_size
    except Exception as error:  # of any package that knows a store
        raise DataError(f"{url} cannot be written: {error}") from None  # whose text may be the URL
    return Uploaded(url.rstrip("/"), len(names), size)


SMALL = 100e6
"""Bytes of a packed folder that is copied to the storage without being asked: what Ray sends along with a job at most."""


def upload_small_shards(shards: str, storage: str) -> str:
    """Return the shard URLs with small packed folders of this machine replaced by their copies in `storage`.

    A copy is at STORAGE/shards/DIGEST/NAME, made once for a content. Whatever else is named stays as it is: URLs, single
    files, folders without `dataset.json`, and large ones, which the nodes may share or which `pack.py upload` copies.

    Raises:
        DataError: the storage cannot be written.
    """
    return "::".join(_uploaded(piece, storage.rstrip("/")) for piece in shards.split("::"))


def _uploaded(place: str, storage: str) -> str:
    folder = Path(place)
    if "://" in place or not (folder / MANIFEST).is_file() or (manifest := read_manifest(place)) is None:
        return place
    if sum((folder / name).stat().st_size for name in manifest.shards if (folder / name).is_file()) > SMALL:
        return place
    digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()[:12]  # it lists the digests of the shards
    base, question, options = storage.partition("?")
    url = f"{base.rstrip('/')}/shards/{digest}/{folder.name}{question}{options}"
    if read_manifest(url) is None:
        upload(folder, url)
    return url
