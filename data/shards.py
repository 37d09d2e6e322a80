"""Tar files of samples (WebDataset shards): which there are, what is in them, and any sample of them by its position.

A sample is the consecutive members that share a name up to the first dot: `cat/01.jpg` and `cat/01.cls` are the fields `jpg`
and `cls` of the sample `cat/01`. A `dataset.json` beside the shards (`data/shard_writer.py` writes it; it is also
an index of the `wids` library) says how many samples each has, so that nothing needs to be opened to plan a run.
"""

from __future__ import annotations

import json
import logging
import posixpath
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import fsspec
from braceexpand import braceexpand
from fsspec.implementations.local import LocalFileSystem

from data.errors import DataError

log = logging.getLogger(__name__)

MANIFEST = "dataset.json"
WIDS_KIND = "wids-shard-index-v1"
_CACHES = ("simplecache", "filecache", "blockcache")  # fsspec chains these with `::`, which otherwise joins URLs


@dataclass(frozen=True)
class Shard:
    """One tar file."""

    url: str
    samples: int
    bytes: int
    sha256: str | None = None
    fields: tuple[str, ...] = ()
    """Fields that its samples have; empty: unknown."""

    @property
    def name(self) -> str:
        """File name without `.tar`: what its samples are called by, wherever the shard lies."""
        return posixpath.basename(self.url).partition(".tar")[0]


@dataclass(frozen=True)
class RawSample:
    """The undecoded fields of one sample."""

    key: str
    shard: str
    fields: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class BadSample:
    """A position of a shard where no sample can be read."""

    key: str
    """The sample's key; `#position` where not even that can be read."""
    shard: str
    reason: str


@dataclass(frozen=True)
class ShardSet:
    """The shards of a stream, in order."""

    shards: tuple[Shard, ...]
    name: str = ""
    licence: str = ""
    source: str = ""
    classes: tuple[str, ...] = ()
    """Names of the classes that the integers of the field `cls` stand for; empty: unknown."""

    @property
    def samples(self) -> int:
        """Samples of all shards."""
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field that some sample has; empty: unknown."""
        return tuple(sorted({name for shard in self.shards for name in shard.fields}))

    @classmethod
    def open(cls, urls: str | Sequence[str]) -> ShardSet:
        """The shards that `urls` names (see `expand`), counted by their `dataset.json`, else by reading their headers.

        Raises:
            DataError: nothing found, a shard missing, a file that is no tar, a `dataset.json` that cannot be understood,
                or shards without any sample.
        """
        found, folders = expand_folders(urls)
        manifests: dict[str, Manifest | None] = {}
        for url in found:
            if (folder := _parent(url)) not in manifests:
                manifests[folder] = read_manifest(folder)
        for folder in folders:
            if (manifest := manifests.get(folder)) is not None:
                _check_complete(folder, manifest, found)
        shards = []
        for url in found:
            manifest = manifests[_parent(url)]
            listed = manifest.shards.get(posixpath.basename(url)) if manifest else None
            shards.append(scan(url) if listed is None else listed)
        used = [manifest for manifest in manifests.values() if manifest is not None]
        shard_set = cls(
            tuple(shards),
            name="+".join(dict.fromkeys(manifest.name for manifest in used if manifest.name)),
            licence="; ".join(dict.fromkeys(manifest.licence for manifest in used if manifest.licence)),
            source="; ".join(dict.fromkeys(manifest.source for manifest in used if manifest.source)),
            classes=_same_classes(used),
        )
        if not shard_set.samples:
            raise DataError(f"the {len(shards)} shards of {urls!r} hold no samples; pack them again")
        return shard_set


@dataclass(frozen=True)
class Manifest:
    """A `dataset.json`."""

    folder: str
    shards: dict[str, Shard]
    """By file name."""
    name: str
    licence: str
    source: str
    classes: tuple[str, ...]
    record: dict[str, Any] = field(repr=False, default_factory=dict)
    """The whole file."""


def expand(urls: str | Sequence[str]) -> list[str]:
    """Shard URLs, one by one and in order; local ones as absolute paths.

    Args:
        urls: paths or any URLs that fsspec knows, with brace ranges (`{000000..000004}`) and lists (`{a,b}`), `*` and
            `?` in the last part, folders (every `.tar` in them, sorted), joined by `::` or as a sequence. A cache of
            fsspec goes before what it caches: `simplecache::s3://bucket/x-{00..09}.tar`.

    Raises:
        DataError: nothing found, a shard missing or named twice, an unknown protocol.
    """
    return expand_folders(urls)[0]


def expand_folders(urls: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """Shard URLs, and the folders that were asked for as a whole."""
    found: list[str] = []
    folders: list[str] = []
    names: dict[str, list[str]] = {}

    def inside(folder: str) -> list[str]:
        if folder not in names:
            names[folder] = _names(folder)
        return names[folder]

    for piece in _pieces([urls] if isinstance(urls, str) else urls):
        try:
            parts = list(braceexpand(piece))
        except ValueError as error:
            raise DataError(f"shards {piece!r}: the braces do not match ({error}); write {{000000..000004}}") from error
        for part in parts:
            url = _absolute(part)
            folder, name = _parent(url), posixpath.basename(url)
            if "*" in name or "?" in name.partition(".tar")[0]:
                matching = [other for other in inside(folder) if fnmatchcase(other, name) and _is_tar(other)]
                if not matching:
                    raise _missing(part, folder, inside(folder))
                found += [f"{folder}/{other}" for other in matching]
            elif _is_tar(name):
                if name not in inside(folder) and not _exists(url):
                    raise _missing(part, folder, inside(folder))
                found.append(url)
            elif _is_folder(url):
                if not (tars := [other for other in inside(url) if _is_tar(other)]):
                    raise _missing(part, url, inside(url))
                folders.append(url)
                found += [f"{url}/{other}" for other in tars]
            else:
                raise _missing(part, folder, inside(folder))
    if not found:
        raise DataError(
            f"shards {urls!r} names nothing; give a folder, a .tar file or a range like train-{{000000..000004}}.tar"
        )
    if len(set(found)) < len(found):
        twice = next(url for url in found if found.count(url) > 1)
        raise DataError(
            f"shards {urls!r} names {twice} twice; its samples would get the same views twice in a pass. Name it once"
        )
    return found, folders


def absolute(urls: str) -> str:
    """The same URLs with local paths made absolute: workers run in other folders."""
    return "::".join(_absolute(piece) for piece in _pieces([urls]))


def _pieces(urls: Sequence[str]) -> Iterator[str]:
    """Splits at `::`, but leaves fsspec's caches with what they cache."""
    for url in urls:
        caches = ""
        for piece in url.split("::"):
            if piece.split("://")[0] in _CACHES:
                caches += piece + "::"
            elif piece.strip():
                yield caches + piece.strip()
                caches = ""


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:  # fsspec knows the protocol, but its package is not installed; the text says which
        raise DataError(f"shards {url!r}: {error}") from error
    except ValueError as error:
        raise DataError(
            f"shards {url!r}: {error}; allowed are local paths and {', '.join(sorted(fsspec.available_protocols()))}"
        ) from error


def _absolute(url: str) -> str:
    fs, path = _filesystem(url)
    return path if isinstance(fs, LocalFileSystem) and "::" not in url else url.rstrip("/")


def _parent(url: str) -> str:
    return url.rpartition("/")[0]


def _is_tar(name: str) -> bool:
    return name.partition("?")[0].endswith(".tar") and not name.startswith(".")


def _is_folder(url: str) -> bool:
    fs, path = _filesystem(url)
    return bool(fs.isdir(path))


def _exists(url: str) -> bool:
    fs, path = _filesystem(url)
    return bool(fs.exists(path))


def _names(folder: str) -> list[str]:
    """What is in a folder; nothing where it does not exist or cannot be listed (HTTP)."""
    fs, path = _filesystem(folder)
    try:
        entries = fs.ls(path, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError(f"shards: {folder} cannot be listed ({error})") from error
    return sorted({entry.rstrip("/").rpartition("/")[2] for entry in entries})


def _missing(url: str, folder: str, names: list[str]) -> DataError:
    tars = [name for name in names if _is_tar(name)]
    if tars:
        there = f"{folder} holds {len(tars)} shards, {tars[0]}" + (f" to {tars[-1]}" if len(tars) > 1 else "")
    elif names:
        there = f"{folder} holds no .tar file"
    else:
        there = f"there is no folder {folder}, or it is empty"
    return DataError(f"shards {url!r}: no such shard or folder of shards; {there}. Shards are made by pipelines/pack.py")


def read_manifest(folder: str) -> Manifest | None:
    """The `dataset.json` of a folder; none when there is none.

    Raises:
        DataError: it is not JSON, or not a list of shards with `url` and `nsamples`.
    """
    where = f"{folder}/{MANIFEST}"
    fs, path = _filesystem(where)
    try:
        text = fs.cat_file(path)
    except (FileNotFoundError, PermissionError):  # a bucket that may not be listed denies what does not exist
        return None
    try:
        record = json.loads(text)
        shards = {}
        for entry in record["shardlist"]:
            name, samples = posixpath.basename(entry["url"]), entry["nsamples"]
            if type(samples) is not int or samples < 0:
                raise ValueError(f"nsamples of {name} is {samples!r}")
            size, digest, fields = entry.get("filesize", -1), entry.get("sha256"), tuple(entry.get("fields", ()))
            shards[name] = Shard(f"{folder}/{name}", samples, size, digest, fields)
        classes = tuple(str(name) for name in record.get("classes") or ())
        name, split, licence, source = (str(record.get(key) or "") for key in ("name", "split", "licence", "source"))
        return Manifest(folder, shards, "-".join(filter(None, (name, split))), licence, source, classes, record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where} is no list of shards ({type(error).__name__}: {error}); pack the shards again, "
            "or delete it and they are counted by reading them"
        ) from error


def _check_complete(folder: str, manifest: Manifest, found: list[str]) -> None:
    present = set(found)
    missing = sorted(name for name, shard in manifest.shards.items() if shard.url not in present)
    if missing:
        raise DataError(
            f"{folder}: {MANIFEST} lists {len(manifest.shards)} shards, but {_brief(missing)} cannot be found; "
            "copy the whole folder, or name the shards you want"
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


@dataclass(frozen=True)
class Index:
    """Where the samples of a tar file lie."""

    keys: list[str]
    members: list[tuple[tuple[str, int, int], ...]]
    """Of every sample: field, offset, size."""
    faults: dict[int, str]
    """Positions whose sample is there but cannot be used, and why."""
    tail: str | None
    """What is wrong behind the last sample; none: nothing."""
    bytes: int


def scan(url: str) -> Shard:
    """Count a shard by reading its headers. What cannot be read at its end counts as one (bad) sample.

    Raises:
        DataError: it cannot be opened, is compressed or no tar file.
    """
    index = index_of(url)
    fields = {name for members in index.members for name, _, _ in members}
    lost = index.tail is not None and len(index.keys) - 1 not in index.faults
    return Shard(url, len(index.keys) + lost, index.bytes, None, tuple(sorted(fields)))


def index_of(url: str) -> Index:
    """Positions, offsets and damage of a shard, from its headers; remembered until the file changes.

    Raises:
        DataError: it cannot be opened, is compressed or no tar file.
    """
    fs, path = _filesystem(url)
    try:
        return _index(url, str(fs.checksum(path)))
    except OSError as error:
        raise DataError(f"shard {url} cannot be read: {error}") from error


@lru_cache(maxsize=16)  # some megabytes each for text; a rank reads one or two shards at a time
def _index(url: str, checksum: str) -> Index:
    keys: list[str] = []
    members: list[tuple[tuple[str, int, int], ...]] = []
    faults: dict[int, str] = {}
    tail: str | None = None
    fs, path = _filesystem(url)
    with fs.open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if file.read(2) == b"\x1f\x8b":
            raise DataError(
                f"shard {url} is compressed; shards are plain .tar files: gunzip it "
                "(its pictures and sounds are compressed already)"
            )
        file.seek(0)
        try:
            archive = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  # the file is closed above, and nothing else is held
        except tarfile.TarError as error:
            if size:
                raise DataError(f"shard {url} is no tar file ({error}); pack it again") from error
            return Index([], [], {}, "the shard is empty (0 bytes)", 0)
        while True:
            try:
                member = archive.next()
            except tarfile.TarError:  # its data ends before the file says it does
                break
            if member is None:
                break
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep every header
            if not member.isreg() or (parts := _key_and_field(member.name)) is None:
                continue
            key, name = parts
            if not keys or keys[-1] != key:
                keys.append(key)
                members.append(())
            position = len(keys) - 1
            if not _is_utf8(member.name):
                faults[position] = "its name is not UTF-8"
            if name in (other for other, _, _ in members[-1]):
                faults[position] = f"the field {name!r} occurs twice in one sample"
            if member.sparse is not None:
                faults[position] = f"the field {name!r} is stored as a sparse file"
            if member.offset_data + member.size > size:
                faults[position] = f"the shard is truncated within the field {name!r}"
            members[-1] = (*members[-1], (name, member.offset_data, member.size))
        # tarfile takes a damaged header for the end of the archive, which is a block of zeros.
        file.seek(min(archive.offset, size))
        end = file.read(tarfile.BLOCKSIZE)
        if end.strip(b"\0"):
            tail = f"the shard is damaged or truncated at byte {archive.offset}"
        elif len(end) < tarfile.BLOCKSIZE:
            tail = "the shard is truncated: it has no end mark"
        names = [{name for name, _, _ in sample} for sample in (members[0], members[-1])] if keys else []
        if tail and keys and (len(keys) == 1 or names[0] != names[1]):
            faults.setdefault(len(keys) - 1, tail)  # what follows of this sample is lost
    return Index(keys, members, faults, tail, size)


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)  # how tarfile keeps bytes that are not


def _key_and_field(name: str) -> tuple[str, str] | None:
    """WebDataset's rule: the key ends at the first dot of the file's name. None: hidden, or without extension."""
    folder, _, base = name.removeprefix("./").rpartition("/")
    stem, dot, extension = base.partition(".")
    if not stem or not dot or not extension:
        return None
    key = f"{folder}/{stem}" if folder else stem
    return key.encode("utf-8", "backslashreplace").decode(), extension.lower()


def read(shard: Shard, indexes: Sequence[int]) -> Iterator[RawSample | BadSample]:
    """The samples at these positions (in tar order, from 0), one for one; ascending positions read fastest.

    What cannot be read gives a BadSample: a truncated or damaged tar, a field that occurs twice.

    Raises:
        DataError: the shard cannot be opened, is no tar, or holds more samples than its `dataset.json` says.
    """
    index = index_of(shard.url)
    if len(index.keys) > shard.samples:
        raise DataError(
            f"shard {shard.url} holds {len(index.keys)} samples, its {MANIFEST} says {shard.samples}; "
            "it was changed after it was packed: pack it again, or delete the dataset.json"
        )
    lost = index.tail or f"the shard is truncated: {len(index.keys)} of {shard.samples} samples are left"
    fs, path = _filesystem(shard.url)
    try:
        with fs.open(path, "rb") as file:
            for position in indexes:
                if not 0 <= position < shard.samples:
                    raise IndexError(f"position {position} of shard {shard.url}, which has {shard.samples} samples")
                if position >= len(index.keys):
                    yield BadSample(f"#{position}", shard.name, lost)
                elif position in index.faults:
                    yield BadSample(index.keys[position], shard.name, index.faults[position])
                else:
                    fields = {}
                    for name, offset, size in index.members[position]:
                        file.seek(offset)
                        fields[name] = file.read(size)
                    yield RawSample(index.keys[position], shard.name, fields)
    except OSError as error:
        raise DataError(f"shard {shard.url} cannot be read: {error}") from error
