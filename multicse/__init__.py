"""Contrastive sentence embeddings. Every room is found by its name: ``multicse.ROOM.MODULE``."""

from functools import cache
from importlib import import_module
from pathlib import Path


def plugin_rooms() -> list[Path]:
    """Return the folders of the rooms with a file ``plugin.py``: no other room imports them, they add to the others."""
    return sorted(file.parent for place in __path__ for file in Path(place).glob("*/plugin.py"))


@cache
def load_plugins() -> None:
    """Import the ``plugin`` of every room that has one, which adds its tasks, encoders and figures to the registries."""
    for room in plugin_rooms():
        import_module(f"{__name__}.{room.name}.plugin")
