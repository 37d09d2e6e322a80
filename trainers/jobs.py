"""Where a Ray job keeps its results when it runs in Ray's copy of the folder that it was sent (``--working-dir``).

Ray removes the copy after the job. Paths in it are therefore moved to a folder that stays: ``MULTICSE_STORAGE`` if that is a
folder, otherwise ``~/multicse`` of the machine that runs the driver.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

STORAGE = "MULTICSE_STORAGE"
"""Environment variable for ``run.storage``; a folder in it also replaces ``~/multicse``."""
RAY_COPIES = "working_dir_files"
"""Ray's name for the folder of the copies in which jobs with a working directory run."""
_COPY = re.compile(rf'/[^":=?]*?/{RAY_COPIES}/[^/":]+/')


def in_copy(place: Path | None = None) -> bool:
    """Return whether a path, by default the current folder, is in Ray's copy of a job's folder."""
    return RAY_COPIES in (place or Path()).absolute().parts


def results_folder(storage: str | None = None) -> Path:
    """Return the folder that keeps the results of jobs.

    Args:
        storage: Value of ``run.storage``. Default: ``MULTICSE_STORAGE``. Bucket URLs are ignored: models and tracking are
            written to a disk. Relative paths start at the home folder.
    """
    place = (storage or os.environ.get(STORAGE) or "").removeprefix("file://")
    return Path.home() / (Path(place).expanduser() if place and "://" not in place else "multicse")


def kept(place: Path, storage: str | None = None) -> Path:
    """Return a path outside Ray's copy of a job's folder: ``runs/demo`` becomes ``~/multicse/runs/demo`` in a job.

    Other paths are returned as they are.

    Args:
        place: Path that the job writes to.
        storage: As for `results_folder`.
    """
    if not in_copy(place):
        return place
    parts = Path(os.path.abspath(place)).parts
    return results_folder(storage).joinpath(*parts[parts.index(RAY_COPIES) + 2 :])


def left_out(place: str) -> str | None:
    """Return the ignore file because of which Ray did not send a path to a job's copy of its folder; None if there is none.

    Ray says nothing of what it leaves out, so that a path just does not exist in the job.
    """
    path = Path(os.path.abspath(place))
    if not in_copy(path) or path.exists():
        return None
    from ray._private.thirdparty.pathspec import PathSpec  # the one that Ray decides by

    root = path.parts.index(RAY_COPIES) + 2
    for depth in range(root, len(path.parts)):
        folder, inside = Path(*path.parts[:depth]), "/".join(path.parts[depth:])
        for file in (folder / ".gitignore", folder / ".rayignore"):
            patterns = PathSpec.from_lines("gitwildmatch", file.read_text().splitlines() if file.is_file() else [])
            if patterns.match_file(inside) or patterns.match_file(f"{inside}/file"):
                return str(file.relative_to(Path(*path.parts[:root])))
    return None


@contextlib.contextmanager
def results_in(folder: Path, first: bool = True) -> Iterator[None]:
    """Print the folder of the results before and after the body, in jobs that run in a copy.

    Args:
        folder: Folder of the results.
        first: Whether to print the line before the body.
    """
    if first:
        announce(folder)
    yield
    if in_copy():
        print(f"results are in {folder}", flush=True)


def announce(folder: Path) -> None:
    """Print where the results of a job will be, if it runs in a copy."""
    if in_copy():
        print(f"results will be in {folder}   ({STORAGE}=FOLDER replaces ~/multicse)", flush=True)


def without_copies(text: str) -> str:
    """Return a recipe's JSON with paths in copies that Ray has removed made relative to the current folder.

    The recipe of a job can then be run again in a clone.
    """
    return _COPY.sub(lambda match: match[0] if Path(match[0]).is_dir() else "", text)


def refuse_unwritable(setting: str, folder: Path) -> None:
    """Raise ValueError if a folder, or the nearest existing one above it, is a file or cannot be written to.

    It is tried, since permissions do not show it: an administrator cannot write to /proc or a read-only disk either.

    Args:
        setting: Setting that the error begins with.
        folder: Folder of the setting.
    """
    there = next(place for place in (folder, *folder.resolve().parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"{setting}: {there} is a file; give a folder")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(f"{setting}: {there} cannot be written to ({error.strerror}); give another folder") from None
