"""Train, evaluate and export contrastive sentence embeddings.

The functions in `__all__` are imported when they are first used, so that ``import multicse`` takes milliseconds. All other
code is imported as ``multicse.PACKAGE.MODULE``. docs/reference/python.md describes the Python API.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multicse.commands.api import TrainingResult, evaluate, load_recipe, pack, train
    from multicse.commands.embed import embed
    from multicse.commands.sweep import sweep

__all__ = ["TrainingResult", "embed", "evaluate", "load_recipe", "pack", "sweep", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.commands.{name if name in ('embed', 'sweep') else 'api'}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def clone() -> Path | None:
    """Return the folder of the clone that contains this package, or None for an installed copy."""
    folder = Path(__file__).resolve().parents[1]
    return folder if (folder / "pipelines").is_dir() else None
