"""Where a pipeline is found: a script of this folder by its name, what an installed package brings along, or a file.

A pipeline is a module with ``RECIPES`` (name -> a function without arguments that returns a `Recipe`).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from multicse.data.errors import did_you_mean
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.registry import load_file

NAMES = tuple(
    file.stem for file in sorted(Path(__file__).parent.glob("*.py")) if re.search(r"^RECIPES\b", file.read_text(), re.M)
)
"""The scripts of this folder that have recipes; the others are verbs."""
Recipes = Mapping[str, Callable[[], Recipe]]
GROUP = "multicse.pipelines"
"""Entry points of installed packages: ``name = "package.module"``; its method is one of the group ``multicse.methods``."""

FILES = {"text": "--text sentences.txt", "image": "--images photos/", "audio": "--sounds recordings/"}
"""Kinds of streams that `mine` takes files for, and how they are given."""


def takes_files(recipes: Recipes) -> bool:
    """Whether `mine` can choose settings from files: a transformer's demo takes them, one kind of file a stream."""
    if "demo" not in recipes:
        return False
    demo = recipes["demo"]()
    return demo.encoder.layered and {stream.kind for stream in demo.streams.values()} <= {*FILES}


def load(name: str) -> ModuleType:
    """The pipeline of a name, or in a Python file (``my_method.py``), whose methods recipes know from then on.

    Raises RecipeError where there is none, with the nearest name.
    """
    if name in NAMES:
        return importlib.import_module(f".{name}", __package__)
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise RecipeError(f"there is no file {name}")
        pipeline = load_file(Path(name))
        if not getattr(pipeline, "RECIPES", None):
            raise RecipeError(f"{name} has no RECIPES, a dict from a name to a function that returns a Recipe")
        return pipeline
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name not in installed:
        known = (*NAMES, *installed)
        raise RecipeError(f"there is no pipeline {name!r}.{did_you_mean(name, known)} There are: {', '.join(known)}")
    found: ModuleType = installed[name].load()
    return found
