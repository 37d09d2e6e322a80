"""MultiCSE under one name. A wheel holds the rooms in this folder (setup.py), and needs nothing that is said here.

In a clone, and in an editable installation of one, ``multicse.trainers.method`` is the module ``trainers.method`` beside
this folder, the same object: what is written for an installed copy runs there too.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

CLONE = Path(__file__).resolve().parents[1]
"""Where the rooms of a clone are."""


class Rooms(MetaPathFinder, Loader):
    """Finds a room in the clone, whatever comes first on Python's path, and ``multicse.ROOM`` as that."""

    def __init__(self) -> None:
        self.names = {file.parent.name for file in CLONE.glob("*/__init__.py")} - {__name__}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As Python asks for it: none for what is no room's."""
        first, _, rest = name.partition(".")
        if first == __name__ and rest.split(".")[0] in self.names:
            return ModuleSpec(name, self)
        return PathFinder.find_spec(name, [str(CLONE)]) if name in self.names else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the room's module in the place of the new one."""
        sys.modules[module.__name__] = importlib.import_module(module.__name__.removeprefix(f"{__name__}."))


def claim() -> None:
    """What Ray's workers call first. That this module is imported for it is all that it does."""


if not (Path(__file__).parent / "data").is_dir():
    sys.meta_path.insert(0, Rooms())
