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

from multicse.data.errors import command, did_you_mean
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.registry import load_file

NAMES = tuple(
    file.stem for file in sorted(Path(__file__).parent.glob("*.py")) if re.search(r"^RECIPES\b", file.read_text(), re.M)
)
"""The scripts of this folder that have recipes; the others are verbs."""
Recipes = Mapping[str, Callable[[], Recipe]]
GROUP = "multicse.pipelines"
"""Entry points of installed packages: ``name = "package.module"``; its method is one of the group ``multicse.methods``."""

RENAMED = {"printed": "paper"}
"""Former names of recipes, with the names of today."""

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


def split(name: str) -> tuple[str, str | None]:
    """Return the pipeline and the recipe of ``PIPELINE/RECIPE``; the recipe is None if only a pipeline is named."""
    pipeline, slash, recipe = name.rpartition("/")
    return (pipeline, recipe) if slash and not recipe.endswith(".py") else (name, None)


def named(recipes: Recipes, name: str | None = None) -> Recipe:
    """Return the recipe of a name; without a name it is ``demo``, or the first one if there is no demo.

    Raises:
        RecipeError: If there is no such recipe; the message names the nearest one.
    """
    name = default(recipes) if name is None else name
    if name in recipes:
        return recipes[name]()
    near = f" It is called {RENAMED[name]!r} now." if name in RENAMED else did_you_mean(name, recipes)
    rows = f"rows of a paper's tables are run by {command('reproduce', 'reproduction')}, a recipe.json by --recipe FILE"
    raise RecipeError(f"no recipe {name!r}.{near} There are: {', '.join(recipes)}; {rows}")


def default(recipes: Recipes) -> str:
    """Return the name of the recipe that is used if none is named."""
    return "demo" if "demo" in recipes else next(iter(recipes))


def from_file(file: Path) -> Recipe:
    """Return the recipe of another run, with an output folder of its own and without `run.overwrite`.

    Raises:
        RecipeError: If there is no such file, or it is not a recipe.
    """
    if not file.is_file():
        raise RecipeError(f"--recipe: there is no file {file}; it takes a recipe.json that a run wrote, or a recipe's name")
    try:
        recipe = Recipe.from_json(file.read_text())
    except (ValueError, OSError) as error:
        raise RecipeError(f"--recipe {file}, which is to be a recipe.json: {error}") from None
    output = f"runs/{recipe.name.replace('/', '-')}-{recipe.identity()[:6]}"
    return recipe.replace("run.output_dir", output).replace("run.overwrite", False)
