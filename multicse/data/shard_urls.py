"""URLs of shards and tables: brace ranges, folders and patterns, in any file system that fsspec supports."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any
from urllib.parse import quote, unquote

import fsspec
from braceexpand import braceexpand
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import tokenize

from multicse.data import limits
from multicse.data.errors import DataError, command
from multicse.data.remote import Denied, call_storage, is_remote

TEXT_TABLES = ("jsonl", "csv", "tsv", "txt")
TABLES = ("parquet", "arrow", *TEXT_TABLES)
"""Endings of files with rows as samples. In a folder without tars, the files of the first kind are read, never `txt`."""
SPLITS = ("train", "training", "validation", "valid", "val", "dev", "test", "testing")
"""Words in the names of shards that are not read together, and names of folders that are not classes."""
STATE, DICT = "state.json", "dataset_dict.json"
"""Files in which `save_to_disk` of the library datasets lists the files of a data set, and the splits of a dict."""
UNCOMPRESS = {
    "gz": "gunzip", "tgz": "gunzip", "bz2": "bunzip2", "tbz": "bunzip2", "tbz2": "bunzip2",
    "xz": "unxz", "txz": "unxz", "zst": "unzstd", "tzst": "unzstd",
}  # fmt: skip
"""Endings of compressed tars, and the commands that uncompress them."""
_COMPRESSED = re.compile(r".+(\.tar\.\w{1,4}|\.t(gz|bz2?|xz|zst))")
DIALECT = ("separator", "quoted")
"""Options of CSV and TSV files; other options name columns."""
_OPTIONS = re.compile(r"#(?=\w+=)")


Names = Callable[[str], dict[str, bool]]
"""Returns the sorted names in a folder and whether they are folders; each folder is listed once."""


def expand(urls: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the URLs of all shards in order, local ones as absolute paths, and the folders that were named.

    A named shard in a folder that cannot be listed (HTTP, a bucket with readable files) is missing only when it is read.

    Args:
        urls: Paths or URLs, joined by `::` or as a sequence, with brace ranges (`{000000..000004}`), lists (`{a,b}`), and
            `*` and `?` in the last part. A folder means every `.tar` in it, sorted. Tables may replace tars, with
            options: `talks.csv#txt=body,separator=;`. `saved#split=test` is a split of a folder that the library datasets
            saved, `hf://imdb#split=test` a split that this library finds by name.

    Raises:
        DataError: If nothing is found, a shard is missing or named twice, or a protocol is unknown.
    """
    names: Names = cache(_names)
    found: list[str] = []
    folders: list[str] = []
    for piece in _pieces([urls] if isinstance(urls, str) else urls):
        place, options = split_options(piece)
        asked, before = options_of(piece), len(found)
        for url in _braces(place):
            if is_hub_name(url):
                found += _hub_files(url, asked)
            elif _is_pattern(url, names):
                found += _matching(url, names)
            elif _is_data(file_name(url)):
                found += _named(url, names)
            else:
                found += _inside(url, names, asked.get("split"))
                folders.append(url)
        options = _without_split(options)
        if options and (tars := [url for url in found[before:] if not table_kind(url)]):
            raise DataError(f"shards {piece!r}: {options} is for tables, and {tars[0]} is not a table")
        found[before:] = [url + options for url in found[before:]]
    if not found:
        raise DataError(
            f"shards {urls!r} names nothing; give a folder, a .tar file or a range like train-{{000000..000004}}.tar"
        )
    if twice := [url for url, times in Counter(found).items() if times > 1]:
        raise DataError(
            f"shards {urls!r} names {twice[0]} twice; its samples would get the same views twice in an epoch. Name it once"
        )
    return found, folders


def _braces(place: str) -> list[str]:
    """Return the URLs that the braces of one expand to, local ones as absolute paths."""
    try:
        return [_absolute(part) for part in braceexpand(place)]
    except ValueError as error:
        raise DataError(f"shards {place!r}: the braces do not match ({error}); write {{000000..000004}}") from error


def _is_pattern(url: str, names: Names) -> bool:
    """Return whether a URL has `*` or `?` in its last part, and is not a file with such a name."""
    name, unsigned = posixpath.basename(url), file_name(url)
    marked = "*" in unsigned or "?" in unsigned or ("?" in name and not _is_data(unsigned))
    return marked and name not in names(parent(url))


def _matching(pattern: str, names: Names) -> list[str]:
    """Return the shards that match a pattern."""
    folder, name = parent(pattern), posixpath.basename(pattern)
    if files := [file for file in names(folder) if fnmatchcase(file, name) and _is_data(file)]:
        return _files(folder, files, names)
    raise _missing(pattern, folder, names)


def _named(url: str, names: Names) -> list[str]:
    """Return a shard that is named, which may be a folder with the name of a table."""
    folder, name = parent(url), posixpath.basename(url)
    if "://" in url and ("?" in url or url.startswith("http") or folder.endswith("/")):
        return [url]  # of a place that is not listed
    listed = names(folder)
    if listed and name not in listed:
        raise _missing(url, folder, names)
    return _files(folder, [name], names) if listed else [url]


def _inside(folder: str, names: Names, split: str | None = None) -> list[str]:
    """Return the shards in a folder: those that its `state.json` lists, otherwise the tars, otherwise the tables."""
    listed = names(folder)
    if DICT in listed:
        return _inside(f"{folder}/{_split(folder, split)}", names)
    if files := _saved_files(folder, listed) or _data_in(listed):
        _refuse_several_splits(folder, files)
        return _files(folder, files, names)
    raise _missing(folder, folder, names)


def _files(folder: str, files: Sequence[str], names: Names) -> list[str]:
    """Return the URLs of files. A folder with the name of a table is replaced by its files: Spark and Dask write such."""
    urls = [[f"{folder}/{file}"] if not names(folder)[file] else _inside(f"{folder}/{file}", names) for file in files]
    return [url for part in urls for url in part]


def sizes(urls: str) -> tuple[int, ...]:
    """Return the number of shards of each URL that `::` joins."""
    return tuple(len(expand(piece)[0]) for piece in _pieces([urls]))


def absolute(urls: str) -> str:
    """Return the URLs with absolute local paths, since workers run in other folders."""
    return "::".join(_absolute(place) + options for place, options in map(split_options, _pieces([urls])))


def places(urls: str) -> list[str]:
    """Return the paths and URLs that `::` joins, without their options."""
    return [split_options(piece)[0] for piece in _pieces([urls])]


def split_options(url: str) -> tuple[str, str]:
    """Return a URL without its options, and the options with their `#`."""
    place = _OPTIONS.split(url, maxsplit=1)[0]
    return place, url[len(place) :]


def options_of(url: str) -> dict[str, str]:
    """Return the options after a table: in ``x.csv#txt=body,separator=;`` the column body is the field txt.

    Raises:
        DataError: If an option has no value, or the separator is not one character.
    """
    given = re.sub(r"(?<=\bseparator=),(?=,|$)", "%2C", split_options(url)[1][1:])  # it would be split there
    try:
        options = parse_options(given, ",")
    except ValueError as error:
        raise DataError(f"{url}: {error}; write #FIELD=COLUMN,FIELD=COLUMN") from error
    options |= {"separator": "\t"} if options.get("separator") in ("tab", "\\t") else {}
    separator = options.get("separator", ",")
    if len(separator) != 1 or separator in '"\r\n\0' or "" in options.values():
        raise DataError(f"{url}: {given!r}; a separator is one character or tab, and no other option is empty")
    if options.get("quoted", "no") not in ("yes", "no"):
        raise DataError(f"{url}: quoted={options['quoted']}; write yes (marks enclose cells) or no (marks are text)")
    return options


def parse_options(text: str, separator: str = "&") -> dict[str, str]:
    """Return the options NAME=VALUE of a text. Percent signs are decoded; a plus is a plus, since it occurs in paths.

    Raises:
        ValueError: If an option has no equals sign.
    """
    options: dict[str, str] = {}
    for option in text.split(separator) if text else ():
        name, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"the option {option!r} has no value")
        options[unquote(name)] = unquote(value)
    return options


def format_options(options: Mapping[str, str]) -> str:
    """Return the text of options, which `parse_options` reads, with ``&`` between them."""
    return "&".join(f"{quote(name)}={quote(value)}" for name, value in options.items())


def table_kind(url: str) -> str | None:
    """Return the ending of a table or text, without `.gz`; None for other files."""
    name = file_name(url)
    ending = name.removesuffix(".gz").rpartition(".")[2].lower()
    known = TEXT_TABLES if is_gzipped(url) else TABLES
    return ending if ending in known and not name.startswith(".") else None


def is_gzipped(url: str) -> bool:
    """Return whether a file is compressed according to its name."""
    return file_name(url).endswith(".gz")


def file_name(url: str) -> str:
    """Return the last part of a path, or of a URL without query and options."""
    place = split_options(url)[0]
    return posixpath.basename(place.partition("?")[0] if "://" in place else place)


def is_hub_name(url: str) -> bool:
    """Return whether a URL names a data set of the Hugging Face Hub, not a file of one (``hf://datasets/...``)."""
    return url.startswith("hf://") and not url.startswith(("hf://datasets/", "hf://buckets/"))


def _hub_files(url: str, options: dict[str, str]) -> list[str]:
    """Return the Arrow files of a data set of the Hugging Face Hub, which the library datasets downloads into its cache."""
    try:
        import datasets
    except ImportError:
        raise DataError(f"shards {url!r} needs the package datasets: pip install datasets") from None
    split = options.get("split", "train")
    if not split.isidentifier():
        raise DataError(f"shards {url!r}: split={split} is not the name of a split; `first` selects a part of one")
    try:
        found = datasets.load_dataset(url.removeprefix("hf://"), options.get("config"), split=split)
    except Exception as error:  # of a library that raises any
        raise DataError(f"shards {url!r}, split={split}: {error}; write hf://NAME#split=..,config=..") from error
    return [file["filename"] for file in found.cache_files]


def _without_split(options: str) -> str:
    """Return the options that name columns."""
    left = [option for option in options[1:].split(",") if option.partition("=")[0] not in ("split", "config")]
    return options[:1] + ",".join(left) if left else ""


def _split(folder: str, asked: str | None) -> str:
    """Return the requested split of a saved DatasetDict. Raises DataError if it has no such split."""
    splits = _listed(folder, DICT, "splits")
    if asked not in splits:
        one = shlex.quote(f"{folder}#split={splits[0]}")
        raise DataError(f"shards {folder!r}: the splits there are {', '.join(splits)}; name one: {one}")
    return asked


def _saved_files(folder: str, names: Collection[str]) -> list[str]:
    """Return the files of a saved Dataset in order, without cached results of the library. Empty for other folders."""
    if STATE not in names or not any(table_kind(name) == "arrow" for name in names):
        return []
    files = _listed(folder, STATE, "_data_files")
    if _listed(folder, STATE, "_indices_data_files", []):
        raise DataError(
            f"{folder}: {STATE} selects rows by indices, as old versions of the library do; load and save it again"
        )
    if missing := [file for file in files if file not in names]:
        raise DataError(
            f"{folder}: {STATE} lists {len(files)} files, but {missing[0]} does not exist; copy the complete folder"
        )
    return files


def _listed(folder: str, name: str, key: str, default: list[str] | None = None) -> list[str]:
    """Return the list of a JSON file of `save_to_disk`. Raises DataError if it cannot be read or is empty."""
    where = f"{folder}/{name}"
    fs, path = filesystem(where)
    try:
        record = json.loads(call_storage(where, partial(fs.cat_file, path, start=0, end=limits.MANIFEST)))
        entries = record[key] if default is None else record.get(key) or default
        listed = [str(entry["filename"] if isinstance(entry, dict) else entry) for entry in entries]
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{where} cannot be read ({type(error).__name__}: {error}); save the data set again") from None
    if not listed and default is None:
        raise DataError(f"{where} lists nothing; save the data set again")
    return listed


def _pieces(urls: Sequence[str]) -> Iterator[str]:
    """Yield the URLs that `::` joins."""
    return (piece.strip() for url in urls for piece in url.split("::") if piece.strip())


def filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it, without options. Call its methods through `call_storage`."""
    url = split_options(url)[0]

    def connect() -> tuple[Any, str]:
        try:
            return fsspec.core.url_to_fs(url)
        except ImportError as error:  # the package of the protocol is not installed; the text names it
            raise DataError(f"shards {url!r}: {error}") from error
        except ValueError as error:
            raise DataError(
                f"shards {url!r}: {error}; allowed are local paths and {', '.join(sorted(fsspec.available_protocols()))}"
            ) from error

    return call_storage(url, connect)


def checksum(url: str) -> str:
    """Return a text that changes when the file changes.

    Over HTTP it does not depend on the address of a redirect, which may have a new signature in every call.
    """
    fs, path = filesystem(url)
    if not url.startswith(("http://", "https://")):
        return str(fs.checksum(path))
    return str(tokenize({name: value for name, value in fs.info(path).items() if name != "url"}))


def _absolute(url: str) -> str:
    return url.rstrip("/") if is_remote(url) else str(filesystem(url)[1])


def parent(url: str) -> str:
    """Return the folder of a shard."""
    folder, slash, _ = split_options(url)[0].rpartition("/")
    return folder or slash


def _is_tar(name: str) -> bool:
    return name.endswith(".tar") and not name.startswith(".")


def _is_data(name: str) -> bool:
    return _is_tar(name) or table_kind(name) is not None


def _data_in(names: Collection[str]) -> list[str]:
    """Return the tars of a folder, otherwise its tables of one kind; of a file and its gzipped copy only the file."""
    if tars := [name for name in names if _is_tar(name)]:
        return tars
    names = [name for name in names if not name.endswith(".gz") or name.removesuffix(".gz") not in names]
    kinds = [[name for name in names if table_kind(name) == kind] for kind in TABLES if kind != "txt"]
    return next(filter(None, kinds), [])


def _names(folder: str) -> dict[str, bool]:
    """Return the sorted names in a folder and whether they are folders; empty if it does not exist or is not listed."""
    with contextlib.suppress(Denied):
        return _list(folder)
    return {}


def _list(folder: str) -> dict[str, bool]:
    """Return the names as `_names`. Raises Denied if this machine may not list the folder; HTTP lists nothing."""
    fs, path = filesystem(folder)
    try:
        if isinstance(fs, LocalFileSystem):  # fsspec would make every name absolute
            with os.scandir(path) as found:
                return dict(sorted((entry.name, entry.is_dir()) for entry in found))
        entries = call_storage(folder, partial(fs.ls, path, detail=True))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except Denied:
        if folder.startswith("http"):
            return {}
        raise
    except OSError as error:
        raise DataError(f"shards: {folder} cannot be listed ({error})") from None  # the text may contain the URL
    kinds = [(entry["name"].rstrip("/").rpartition("/")[2], entry["type"] == "directory") for entry in entries]
    return dict(sorted(kinds))


def _refuse_several_splits(folder: str, files: list[str]) -> None:
    """Raise DataError for a folder with files of several splits: their names have different words of `SPLITS`."""
    words = {file: [word for word in re.split("[^A-Za-z]+", file) if word.lower() in SPLITS] for file in files}
    found = {tuple(sorted({word.lower() for word in words[file]})): file for file in files if words[file]}
    if len(found) > 1:
        first, second = list(found.values())[:2]
        own = next((f"*{word}*.{first.rpartition('.')[2]}" for word in words[first] if word not in words[second]), first)
        raise DataError(
            f"shards {folder!r}: the files there are of {' and '.join(map('-'.join, found))} ({', '.join(found.values())}); "
            f"name the shards of one set: {shlex.quote(f'{folder}/{own}')}"
        )


def _missing(url: str, folder: str, names: Names) -> DataError:
    """Return the error for a URL without a shard in a folder, by its content. Raises Denied if that may not be listed."""
    listed = _list(folder)
    if not listed:
        folder, listed = parent(folder), names(parent(folder))
    shards = [name for name in listed if _is_data(name)]
    zipped = [name for name in listed if _COMPRESSED.fullmatch(name) and (name == posixpath.basename(url) or not shards)]
    if zipped:
        place, tool = f"{folder}/{zipped[0]}", UNCOMPRESS.get(zipped[0].rpartition(".")[2], "uncompress")
        return DataError(f"shards {url!r}: {place} is a compressed tar, which is not supported: {tool} {shlex.quote(place)}")
    if file_name(url) in listed:
        return DataError(
            f"shards {url!r}: this file is not a shard; shards are .tar, {', '.join('.' + kind for kind in TABLES)}, and of "
            f"{', '.join('.' + kind for kind in TEXT_TABLES)} also .gz. Decompress it, or write it as one of these (an "
            "array of JSON by jq -c '.[]' x.json > x.jsonl)"
        )
    there = (
        f"has {len(shards)} shards, {shards[0]} to {shards[-1]}"
        if shards
        else "has no shards (of a partitioned table, name the files)"
    )
    if shards and folder == url.rstrip("/") and all(table_kind(name) == "txt" for name in shards):  # which may be notes
        own = shlex.quote(f"{folder}/*{shards[0][shards[0].index('.txt') :]}")
        return DataError(f"shards {url!r}: the folder has text files only, which are not read unless they are named: {own}")
    there = there if listed else "does not exist, is empty, or may not be listed"
    return DataError(f"shards {url!r} not found: the folder {folder or '.'} {there}. Create shards with: {command('pack')}")
