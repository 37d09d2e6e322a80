"""Search spaces: one module per paper. Its ``SPACES`` maps pipeline -> name -> space."""

from __future__ import annotations

import importlib
import pkgutil

from multicse.trainers.tuning.space import SearchSpace


def every() -> dict[str, dict[str, SearchSpace]]:
    """Return the spaces of all papers: pipeline -> name -> space."""
    found: dict[str, dict[str, SearchSpace]] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= importlib.import_module(f"{__name__}.{module.name}").SPACES
    return found
