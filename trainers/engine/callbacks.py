"""A user's own functions that are told how a run goes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from multicse.trainers.registry import load_file, module_of

Callback = Callable[[int, dict[str, float], Any], object]
"""Called on rank 0 with the step, what was measured by name, and the `Engine`: its `recipe`, `method`, `steps` and
`best_score` are there to be read."""


def find(name: str) -> Callback:
    """The function ``package.module:function``, or ``FILE.py:function`` of a file of the user's own.

    A worker has the text of such a file from the driver (`registry.loaded`), where it was found first. Raises ValueError
    where there is none.
    """
    place, _, attribute = name.rpartition(":")
    own = module_of(place) if place.endswith(".py") else place
    try:
        module = sys.modules.get(own) or (load_file(place) if own != place else importlib.import_module(place))
        found: Callback = getattr(module, attribute)
    except (ImportError, AttributeError, OSError, ValueError) as error:
        raise ValueError(
            f"run.callbacks: {name!r} is no function ({error}); write package.module:function, or FILE.py:function"
        ) from None
    return found
