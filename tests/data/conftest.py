"""What several tests of this folder use."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """fsspec's file system in memory: another kind of place than a folder, with the same URLs as a store."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield fs
    fs.store.clear()
