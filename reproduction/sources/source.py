"""A data set as its makers distribute it, and what recipes read of it: folders of shards, and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from multicse.data.shard_writer import Drafts, Form


@dataclass(frozen=True)
class Content:
    """What a reader found in a download, to be packed."""

    drafts: Drafts
    files: Path | None = None
    """The folder of the files that the drafts name."""
    classes: tuple[str, ...] | None = None
    """Names of the classes 0, 1, ...; none: those that occur, sorted."""
    form: Form = "tar"
    """Of its shards; texts are small in Parquet."""


Reader = Callable[..., Content | Iterable[str]]
"""Takes the places of `Result.wanted` in their order, and gives what is packed, or the lines of a text file."""


@dataclass(frozen=True)
class Result:
    """A folder of shards, or a file, and what it is made from."""

    path: str
    """Below the output folder, as recipes and tables name it: ``shards/wiki1m``, ``wos/wos7.tsv``."""
    wanted: tuple[str, ...]
    """Files, and folders (``audio/``), below the folder of the download; without a reader: below `path` itself."""
    read: Reader | None = None
    """None: used as it is, where it is."""
    split: str = "train"


@dataclass(frozen=True)
class Source:
    """A data set: what it is called, where it is had on which terms, and what is made from it."""

    title: str
    home: str
    licence: str
    """As its makers state it; it goes into the shards, and from there into model cards."""
    results: tuple[Result, ...]
    hint: str = ""
    """What there is to do beside downloading and unpacking."""
