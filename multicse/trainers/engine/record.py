"""Record of a run, ``run.json`` in its folder, from which everything else is decided; names of files, and locks.

| field | |
|---|---|
| ``run``, ``former`` | ID of the run, which its checkpoints, store and MLflow run have too, and IDs of earlier runs |
| ``recipe``, ``inputs`` | recipe, and digests of everything that it reads (`inputs`) |
| ``state`` | training, trained (``result`` and ``checkpoint`` are known) or delivered (``summary`` is known) |
| ``storage``, ``store`` | place of the checkpoints without passwords (empty: this folder), and folder in ``run.storage`` |
| ``run_id``, ``uri``, ``ended`` | MLflow run and its server, and the end of the run in seconds since 1970 |
| ``uploaded``, ``registered`` | names under which the model was uploaded to the Hub and registered in MLflow |
| ``files`` | files that the run wrote and may therefore replace |

The record of a sweep has its name in ``sweep``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout

from multicse.trainers.recipe import RecipeError

log = logging.getLogger(__name__)

NOTE = "run.json"
"""File name of the record."""
FILES = "files"
"""Field of the record with the files that the run wrote, relative to its folder. Checkpoints have manifests instead."""

RUN, FORMER, INPUTS, SWEEP = "run", "former", "inputs", "sweep"
RECIPE, SUMMARY, JOURNAL, SKIPPED = "recipe.json", "summary.json", "journal.jsonl", "skipped.json"
"""Files besides the record: recipe and result for users, metrics, skipped samples."""
CHECKPOINT, EXPORT, RAY = "checkpoint", "export", ".ray-train"
"""Folders in a run's folder: checkpoints, exported model, state of Ray Train during training."""
DRIVER, WRITER = ".lock", ".writer.lock"
"""Locks in a run's folder: of the driver, and of the worker that writes there."""
OUTLIVES = 60.0
"""Seconds that this worker may outlive a dead driver."""


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


@contextlib.contextmanager
def locked(folder: Path, setting: str = "run.output_dir", name: str = DRIVER, wait: float = 0) -> Iterator[None]:
    """Lock a folder for this process, and create it if it does not exist. The lock ends with the process.

    Args:
        folder: Folder in which only one process may work at a time.
        setting: Setting to name in the error.
        name: File name of the lock.
        wait: Seconds to wait for another process to end.

    Raises:
        RecipeError: If another process, which the error names, holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    try:
        lock = FileLock(file).acquire(timeout=wait)
    except Timeout:
        holder = file.read_text() or "another process"
        raise RecipeError(
            f"{setting}={str(folder)!r} is in use by {holder}; wait for it, end it, or set another folder"
        ) from None
    with lock:
        file.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
