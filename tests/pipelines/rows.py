"""Helpers that compare tables of a paper's settings with recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multicse.reproduction.tables.runs import recipe_of
from multicse.reproduction.tables.table import Table
from multicse.trainers.recipe import Recipe


def recipe_in(tables: Mapping[str, Table], name: str) -> Recipe:
    """Return the recipe of a row of a paper's table, ``T1/LABEL``."""
    key, _, label = name.partition("/")
    return recipe_of(next(row for row in tables[key].rows if row.label == label))


def holds(recipe: Recipe, numbers: Mapping[str, Any]) -> None:
    """Check that the recipe has these values at these dotted paths."""
    flat = recipe.flat()
    assert {path: flat.get(path, "no such setting") for path in numbers} == dict(numbers)


def difference(recipe: Recipe, base: Recipe) -> dict[str, Any]:
    """Return the settings in which two recipes differ, except for name and output."""
    one, other = base.flat(), recipe.flat()
    paths = (one.keys() | other.keys()) - {"name", "run.output_dir"}
    return {path: other.get(path) for path in paths if one.get(path) != other.get(path)}
