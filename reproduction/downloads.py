"""The data sets of sources.toml: where each is had, what recipes read of it, and which of them makes a place."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicse.data.errors import command
from multicse.data.shard_writer import Drafts, Form

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


@dataclass(frozen=True)
class Result:
    """A folder of shards or of a model, or a file, and what it is made from."""

    path: str
    """Below the output folder, as recipes and tables name it: ``shards/wiki1m``, ``wos/wos7.tsv``."""
    wanted: tuple[str, ...]
    """Files, and folders (``audio/``), below the folder of the download; without a reader: below `path` itself."""
    read: str | None = None
    """``MODULE.NAME`` of the reader in `sources/`; None: used as it is, where it is."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the reader is called with."""
    split: str = "train"

    def content(self, folder: Path) -> Content | PreTrainedModel | Iterable[str]:
        """What is packed, a model, or the lines of a text file, from the download in `folder`."""
        assert self.read is not None
        module, _, name = self.read.partition(".")
        reader: Callable[..., Content | PreTrainedModel | Iterable[str]]
        reader = getattr(importlib.import_module(f"{__package__}.sources.{module}"), name)
        return reader(*(folder / wanted for wanted in self.wanted), **self.settings)


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


def _tuples(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}


def _source(given: Mapping[str, Any]) -> Source:
    results = [Result(**_tuples(one) | {"settings": _tuples(one.get("settings", {}))}) for one in given["results"]]
    told = {name: text.replace("{translate}", TRANSLATE) for name, text in given.items() if name != "results"}
    return Source(results=tuple(results), **told)


TRANSLATE = command("translate", "reproduction")
SOURCES = {
    name: _source(given)
    for name, given in tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8")).items()
}


def maker(place: str) -> str | None:
    """The name in `SOURCES` of what makes a place that a recipe names: ``shards/clotho-val`` is made by ``clotho``.

    None for a place that nothing here makes. What is used as it is counts with all that lies in it. A place of the current
    folder may be absolute.
    """
    place = place.removeprefix(f"{Path.cwd()}/")
    for name, source in SOURCES.items():
        for result in source.results:
            if place == result.path or (result.read is None and place.startswith(f"{result.path}/")):
                return name
    return None
