"""Where a pipeline is found by its name: a script of this folder, a file of a user's own, or what a package brings along.

A pipeline is a module with ``RECIPES`` (name -> a function without arguments that returns a `Recipe`), perhaps
``make_start(recipe)``, which makes what the recipe starts from.
"""

from __future__ import annotations

import difflib
import importlib
from types import ModuleType

from trainers.recipe import RecipeError

NAMES = (
    *("simcse", "visualcse", "audiocse", "nonlingcse"),
    *("sgbert", "cyclip", "clap", "gclsr", "mocoutrl", "pretrain"),
)
GROUP = "multicse.pipelines"
"""Entry points of this group are pipelines of installed packages: ``esimcse = "my_package.esimcse"``."""


def pipelines() -> dict[str, ModuleType]:
    """Every pipeline of this repository by its name."""
    return {name: load(name) for name in NAMES}


def load(name: str) -> ModuleType:
    """The pipeline of a name. Raises RecipeError where there is none, with the nearest one."""
    if name in NAMES:
        return importlib.import_module(f"pipelines.{name}")
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise RecipeError(f"no pipeline {name!r}; {hint}There are: {', '.join(NAMES)}")
