"""Folders that a run writes to, looked at before it begins."""

from __future__ import annotations

import tempfile
from pathlib import Path


def refuse_unwritable(setting: str, folder: Path) -> None:
    """Raise ValueError, which begins with `setting`, where a folder or the nearest one above that is there is a file, or
    cannot be written to.

    Tried rather than asked: the administrator may do everything, and still not write to /proc or a read-only disk.
    """
    there = next(place for place in (folder, *folder.resolve().parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"{setting}: {there} is a file; give a folder")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(f"{setting}: {there} cannot be written to ({error.strerror}); give another folder") from None
