"""Where what is made of users' files is kept from run to run."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$MULTICSE_CACHE, else $XDG_CACHE_HOME/multicse, else ~/.cache/multicse."""
    if own := os.environ.get("MULTICSE_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "multicse"
