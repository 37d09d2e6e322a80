"""The data sets of sources.toml by their names, and which of them makes a place that a recipe names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from multicse.data.errors import command
from multicse.reproduction.sources import pictures, sheets, sounds, texts
from multicse.reproduction.sources.source import Reader, Result, Source

READERS = {"pictures": pictures, "sheets": sheets, "sounds": sounds, "texts": texts}
TRANSLATE = command("translate", "reproduction")


def _source(given: Mapping[str, Any]) -> Source:
    said = {name: text.replace("{translate}", TRANSLATE) for name, text in given.items() if name != "results"}
    return Source(results=tuple(map(_result, given["results"])), **said)


def _result(given: Mapping[str, Any]) -> Result:
    return Result(given["path"], tuple(given["wanted"]), _reader(given), given.get("split", "train"))


def _reader(given: Mapping[str, Any]) -> Reader | None:
    """The function ``MODULE.NAME`` of `sources/`, with what is set beside it; None: a place is used as it is."""
    if "read" not in given:
        return None
    module, _, name = given["read"].partition(".")
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in given.get("with", {}).items()}
    return partial(getattr(READERS[module], name), **settings)


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
