"""Registry of everything that has a name in recipes and commands, and that the papers' kit or a user may add to.

Packages of `multicse` with a module ``plugin.py`` are imported when something is looked up first; nothing else imports them.

kind             thing
---------------  ------------------------------------------------------------------------------------------------------
``task``         kind of evaluation task, ``KIND:PLACE``
``family``       evaluation tasks with fixed names, which read the data folder
``group``        names of tasks that are evaluated together (``sts``)
``head``         classifier on frozen embeddings
``templates``    prompt templates of zero-shot classification
``pooling``      pooling over the layers of a transformer, by a regular expression of its names
``word pooling`` pooling over word vectors
``post``         post-processing of embeddings, which is fitted on sentences
``figure``       figures of a model on some tasks
``scatter``      figures of several models on a task
``layers``       evaluation of every layer of a model
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from multicse.data.errors import did_you_mean

_things: dict[str, dict[str, Any]] = defaultdict(dict)


def add(kind: str, name: str, thing: Any) -> None:
    """Register a thing under a name; it replaces a thing with this name."""
    _things[kind][name] = thing


def every(kind: str) -> Mapping[str, Any]:
    """Return all things of a kind by name."""
    _load()
    return MappingProxyType(_things[kind])


def get(kind: str, name: str) -> Any:
    """Return a thing by name; raise ValueError, which lists all names, if there is none with this name."""
    found = every(kind)
    if name not in found:
        raise ValueError(f"unknown {kind} {name!r}.{did_you_mean(name, found)} Choose from {', '.join(found)}")
    return found[name]


def packages() -> list[Path]:
    """Return the folders of packages that contain a ``plugin.py``."""
    return sorted(file.parent for file in Path(__file__).parent.glob("*/plugin.py"))


@cache
def _load() -> None:
    for package in packages():
        import_module(f"multicse.{package.name}.plugin")
