"""Location of a Ray job's results if the job runs in Ray's copy of its working directory (``--working-dir``).

Ray deletes the copy after the job. Paths inside it are therefore redirected to a persistent folder: ``MULTICSE_STORAGE`` if
that is a folder, otherwise ``~/multicse`` on the machine of the driver.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

STORAGE = "MULTICSE_STORAGE"
"""Environment variable for ``run.storage``; if it is a folder, it also replaces ``~/multicse``."""
RAY_COPIES = "working_dir_files"
"""Ray's name for the folder that contains the copies of working directories."""
_COPY = re.compile(rf'/[^":=?]*?/{RAY_COPIES}/[^/":]+/')


def in_copy(place: Path | None = None) -> bool:
    """Return True if a path, by default the current folder, is inside Ray's copy of a working directory."""
    return RAY_COPIES in (place or Path()).absolute().parts


def results_folder(storage: str | None = None) -> Path:
    """Return the folder for the results of jobs: ``run.storage`` or ``MULTICSE_STORAGE``, otherwise ``~/multicse``.

    Bucket URLs are ignored, since models and tracking are written to disk. Relative paths start at the home folder.
    """
    place = (storage or os.environ.get(STORAGE) or "").removeprefix("file://")
    return Path.home() / (Path(place).expanduser() if place and "://" not in place else "multicse")


def kept(place: Path, storage: str | None = None) -> Path:
    """Redirect a path inside Ray's copy of a working directory to `results_folder`.

    In a job ``runs/demo`` becomes ``~/multicse/runs/demo``; other paths are returned unchanged.
    """
    if not in_copy(place):
        return place
    parts = Path(os.path.abspath(place)).parts
    return results_folder(storage).joinpath(*parts[parts.index(RAY_COPIES) + 2 :])


def shown(place: str | Path) -> str:
    """Return a path as commands print it: relative to the current folder if it is inside it, otherwise unchanged."""
    here, path = Path.cwd(), Path(os.path.abspath(place))
    return str(path.relative_to(here) if path.is_relative_to(here) else place)


def left_out(place: str) -> str | None:
    """Return the ignore file that made Ray omit a path from its copy of the working directory, or None.

    Ray does not report omitted files; in the job the path does not exist.
    """
    path = Path(os.path.abspath(place))
    if not in_copy(path) or path.exists():
        return None
    from ray._private.thirdparty.pathspec import PathSpec  # Ray's own rules

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
    """Print the results folder after the body, and before it if `first`, in jobs that run in a copy."""
    if first:
        announce(folder)
    yield
    if in_copy():
        print(f"results are in {folder}", flush=True)


def announce(folder: Path) -> None:
    """Print where the results of a job will be stored, if it runs in a copy."""
    if in_copy():
        print(f"results will be in {folder}   ({STORAGE}=FOLDER ray start --head replaces ~/multicse)", flush=True)


def without_copies(text: str) -> str:
    """Return a recipe's JSON in which paths inside deleted Ray copies are relative to the current folder.

    This makes the recipe of a finished job usable in a clone.
    """
    return _COPY.sub(lambda match: match[0] if Path(match[0]).is_dir() else "", text)


def refuse_unwritable(setting: str, folder: Path) -> None:
    """Raise ValueError, which names the setting, if a folder, or its nearest existing parent, is a file or not writable.

    It tries to write, since permissions are not sufficient: root cannot write to /proc or to a read-only disk either.
    """
    there = next(place for place in (folder, *folder.resolve().parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"{setting}: {there} is a file; give a folder")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(f"{setting}: {there} cannot be written to ({error.strerror}); give another folder") from None
