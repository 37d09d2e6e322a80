"""Shard URLs: brace ranges, folders and patterns, of any file system that fsspec knows."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import fsspec
from braceexpand import braceexpand
from fsspec.implementations.local import LocalFileSystem

from data.errors import DataError

_CACHES = ("simplecache", "filecache", "blockcache")  # fsspec chains these with `::`, which otherwise joins URLs


def expand(urls: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """Shard URLs, one by one and in order, local ones as absolute paths; and the folders that were named as a whole.

    Args:
        urls: paths or any URLs that fsspec knows, with brace ranges (`{000000..000004}`) and lists (`{a,b}`), `*` and
            `?` in the last part, folders (every `.tar` in them, sorted), joined by `::` or as a sequence. A cache of
            fsspec goes before what it caches: `simplecache::s3://bucket/x-{00..09}.tar`.

    Raises:
        DataError: nothing found, a shard missing or named twice, an unknown protocol.
    """
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
            fs, path = filesystem(url)
            folder, name = parent(url), posixpath.basename(url)
            if "*" in name or "?" in name.partition(".tar")[0]:
                matching = [other for other in inside(folder) if fnmatchcase(other, name) and _is_tar(other)]
                if not matching:
                    raise _missing(part, folder, inside(folder))
                found += [f"{folder}/{other}" for other in matching]
            elif _is_tar(name):
                if name not in inside(folder) and not fs.exists(path):
                    raise _missing(part, folder, inside(folder))
                found.append(url)
            elif fs.isdir(path):
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


def sizes(urls: str) -> tuple[int, ...]:
    """How many shards each of the URLs names that `::` joins."""
    return tuple(len(expand(piece)[0]) for piece in _pieces([urls]))


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


def filesystem(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it; DataError for a protocol that is unknown or whose package is missing."""
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:  # fsspec knows the protocol, but its package is not installed; the text says which
        raise DataError(f"shards {url!r}: {error}") from error
    except ValueError as error:
        raise DataError(
            f"shards {url!r}: {error}; allowed are local paths and {', '.join(sorted(fsspec.available_protocols()))}"
        ) from error


def _absolute(url: str) -> str:
    fs, path = filesystem(url)
    return path if isinstance(fs, LocalFileSystem) and "::" not in url else url.rstrip("/")


def parent(url: str) -> str:
    """The folder of a shard."""
    return url.rpartition("/")[0]


def _is_tar(name: str) -> bool:
    return name.partition("?")[0].endswith(".tar") and not name.startswith(".")


def _names(folder: str) -> list[str]:
    """What is in a folder; nothing where it does not exist or cannot be listed (HTTP)."""
    fs, path = filesystem(folder)
    try:
        entries = fs.ls(path, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError(f"shards: {folder} cannot be listed ({error})") from None  # whose text may be the URL
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
