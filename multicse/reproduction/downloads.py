"""Datasets of sources.toml: their sources, and the shards, files or models that `prepare.py` creates from them."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from pydantic import TypeAdapter

from multicse.data.errors import command
from multicse.data.lexicon import Language, Pos, Sense
from multicse.data.shard_writer import Drafts, Form

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Content:
    """Samples of a download, to be packed."""

    drafts: Drafts
    files: Path | None = None
    """Folder of the files to which the drafts refer."""
    classes: tuple[str, ...] | None = None
    """Names of the classes 0, 1, .... If None, the sorted names that occur."""
    form: Form = "tar"
    """Format of the shards; Parquet is smaller for texts."""


@dataclass(frozen=True)
class Words:
    """Meanings of words, for a lexicon file."""

    senses: Iterable[tuple[Pos, Sense]]
    language: Language


Found = Union[Content, Words, "PreTrainedModel", Iterable[str]]
"""Samples to pack, words, a model, or the lines of a text file."""


@dataclass(frozen=True)
class Result:
    """Folder of shards or of a model, or a file, and the downloaded files from which it is created."""

    path: str
    """Path below the output folder, as in recipes and tables: ``shards/wiki1m``, ``wos/wos7.tsv``."""
    wanted: tuple[str, ...]
    """Required files and folders (``audio/``) below the folder of the download; without a reader, below `path`."""
    read: str | None = None
    """Reader ``MODULE.NAME`` in `sources/`. If None, the files are used unchanged."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the reader."""
    split: str = "train"

    def content(self, folder: Path) -> Found:
        """Read the download in `folder`."""
        assert self.read is not None
        module, _, name = self.read.partition(".")
        reader: Callable[..., Found]
        reader = getattr(importlib.import_module(f"{__package__}.sources.{module}"), name)
        return reader(*(folder / wanted for wanted in self.wanted), **self.settings)


@dataclass(frozen=True)
class Source:
    """Dataset with its home page, licence and results."""

    title: str
    home: str
    licence: str
    """Licence as its authors state it; stored in the shards, and from there in model cards."""
    results: tuple[Result, ...]
    places: tuple[str, ...] = ()
    """Folders in which packages install it."""
    hint: str = ""
    """Steps that are needed in addition to downloading and unpacking."""


_TEXT = Path(__file__).with_name("sources.toml").read_text(encoding="utf-8")
_GIVEN = tomllib.loads(_TEXT.replace("{translate}", command("translate", "reproduction")))
SOURCES = TypeAdapter(dict[str, Source]).validate_python(_GIVEN)


def maker(place: str) -> str | None:
    """Return the dataset of `SOURCES` that provides a path of a recipe, or None: ``clotho`` for ``shards/clotho-val``.

    Paths inside folders that are used unchanged are included. A path below the current folder may be absolute.
    """
    place = place.removeprefix(f"{Path.cwd()}/")
    for name, source in SOURCES.items():
        for result in source.results:
            if place == result.path or (result.read is None and place.startswith(f"{result.path}/")):
                return name
    return None
