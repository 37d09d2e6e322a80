"""Contrastive sentence embeddings; the Python API is described in docs/reference/python.md.

The functions below are imported when they are first used. Packages are imported by name: ``multicse.PACKAGE.MODULE``.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multicse.pipelines.api import TrainingResult, evaluate, load_recipe, pack, train
    from multicse.pipelines.sweep import sweep

__all__ = ["TrainingResult", "evaluate", "load_recipe", "pack", "sweep", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.pipelines.{'sweep' if name == 'sweep' else 'api'}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def plugin_rooms() -> list[Path]:
    """Return the folders of the rooms with a file ``plugin.py``: no other room imports them, they add to the others."""
    return sorted(file.parent for place in __path__ for file in Path(place).glob("*/plugin.py"))


@cache
def load_plugins() -> None:
    """Import the ``plugin`` of every room that has one, which adds its tasks, encoders and figures to the registries."""
    for room in plugin_rooms():
        import_module(f"{__name__}.{room.name}.plugin")
