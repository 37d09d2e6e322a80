"""Record of a run, ``run.json`` in its folder: which run it is, and the files that it wrote and may therefore replace."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

log = logging.getLogger(__name__)

NOTE = "run.json"
"""File name of the record."""
FILES = "files"
"""Field of the record with the files that the run wrote, relative to its folder. Checkpoints have manifests instead."""


def new_id() -> str:
    """Return the ID of a new run."""
    return uuid4().hex[:12]


def read(folder: Path) -> dict[str, Any]:
    """Return the record of the run in a folder; empty if there is none or it cannot be read."""
    return read_json(folder / NOTE) or {}


def update(folder: Path, fields: dict[str, Any]) -> None:
    """Replace fields of the record."""
    write_json(folder / NOTE, read(folder) | fields)


def take(folder: Path, names: Iterable[str]) -> None:
    """Record that the run is about to write files. Files of these names that it did not write are renamed first.

    Args:
        folder: Folder of the run.
        names: Files relative to it.
    """
    ours = read(folder).get(FILES, [])
    names = [name for name in names if name not in ours]
    for name in names:
        set_aside(folder / name)
    if names:
        update(folder, {FILES: [*ours, *names]})


def set_aside(place: Path) -> None:
    """Rename a file or folder, which does not have to exist, so that a run does not replace it."""
    if not place.exists():
        return
    names = (f"{place.name}.before{number or ''}" for number in range(10_000))
    free = next(place.with_name(name) for name in names if not place.with_name(name).exists())
    place.rename(free)
    log.warning("%s was not written by this run; it is now named %s", place, free.name)


def read_json(file: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file with an object, or None if there is none or it is damaged."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    return None


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file atomically."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(json.dumps(content, indent=2), encoding="utf-8")
    os.replace(fresh, file)
