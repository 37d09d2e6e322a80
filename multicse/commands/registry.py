"""Find pipelines by name (scripts of `pipelines/`, entry points of installed packages) or by Python file.

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
from multicse.data.text_files import read_text
from multicse.plugins import load_file
from multicse.trainers.recipe import Recipe, RecipeError

PAPERS = Path(__file__).parents[1] / "pipelines"
NAMES = tuple(file.stem for file in sorted(PAPERS.glob("*.py")) if re.search(r"^RECIPES\b", file.read_text("utf-8"), re.M))
"""Scripts of `pipelines/` with recipes; the other scripts there start commands such as `evaluate`."""
Recipes = Mapping[str, Callable[[], Recipe]]
GROUP = "multicse.pipelines"
"""Group of entry points of installed packages: ``name = "package.module"``. Their methods are entry points of the group
``multicse.methods``."""

FILES = {"text": "--text sentences.txt", "image": "--images photos/", "audio": "--audio recordings/"}
"""Kinds of streams for which `mine` takes files, with an example of its options."""


def takes_files(recipes: Recipes) -> bool:
    """Return True if `mine` can train these recipes on files: the demo has a transformer and only text, images and audio."""
    if "demo" not in recipes:
        return False
    demo = recipes["demo"]()
    return demo.encoder.layered and {stream.kind for stream in demo.streams.values()} <= {*FILES}


def load(name: str) -> ModuleType:
    """Return the module of a pipeline.

    Args:
        name: Name of a pipeline, or a Python file (``my_method.py``), whose methods are registered.

    Raises:
        RecipeError: If the pipeline does not exist. The message names the nearest name.
    """
    if name in NAMES:
        return importlib.import_module(f"multicse.pipelines.{name}")
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise RecipeError(f"file {name} not found; give an existing Python file with RECIPES, or the name of a pipeline")
        pipeline = load_file(Path(name))
        if not getattr(pipeline, "RECIPES", None):
            raise RecipeError(f"{name} does not define RECIPES, a dict from names to functions that return a Recipe")
        return pipeline
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name not in installed:
        known = (*NAMES, *installed)
        raise RecipeError(f"pipeline {name!r} not found.{did_you_mean(name, known)} Pipelines: {', '.join(known)}")
    found: ModuleType = installed[name].load()
    return found


def split(name: str) -> tuple[str, str | None]:
    """Return the pipeline and the recipe of ``PIPELINE/RECIPE``; the recipe is None if only a pipeline is named."""
    pipeline, slash, recipe = name.rpartition("/")
    return (pipeline, recipe) if slash and not recipe.endswith(".py") else (name, None)


def named(recipes: Recipes, name: str | None = None) -> Recipe:
    """Return a recipe by name.

    Args:
        recipes: Recipes of a pipeline.
        name: Name of a recipe. Default: ``demo``, or the first recipe of a pipeline without a demo.

    Raises:
        RecipeError: If the recipe does not exist. The message names the nearest name.
    """
    name = default(recipes) if name is None else name
    if name in recipes:
        return recipes[name]()
    tables = f"{command('reproduce', 'reproduction')} runs the tables of the papers"
    raise RecipeError(f"recipe {name!r} not found.{did_you_mean(name, recipes)} Recipes: {', '.join(recipes)}; {tables}")


def default(recipes: Recipes) -> str:
    """Return the name of the default recipe."""
    return "demo" if "demo" in recipes else next(iter(recipes))


def from_file(file: Path, option: str = "") -> Recipe:
    """Return the recipe of another run, with a new output folder and without `run.overwrite`.

    Args:
        file: A ``recipe.json``.
        option: Option that named the file, for the messages.

    Raises:
        RecipeError: If the file does not exist or does not contain a recipe.
    """
    if not file.is_file():
        raise RecipeError(f"{option}file {file} not found; give the recipe.json of a run, or the name of a recipe")
    try:
        recipe = Recipe.from_json(read_text(file))
    except (ValueError, OSError) as error:
        raise RecipeError(f"{option}{file} is not the recipe.json of a run: {error}") from None
    output = f"runs/{recipe.name.replace('/', '-')}-{recipe.identity()[:6]}"
    return recipe.replace("run.output_dir", output).replace("run.overwrite", False)
