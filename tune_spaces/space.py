"""A search space: dotted recipe paths to Ray Tune domains, checked against the recipe before Ray starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ray.tune.search.sample import Categorical, Domain, Float, Integer

from trainers.recipe import Recipe, RecipeError

SearchSpace = Mapping[str, Domain | dict[str, list[Any]]]
"""``{"optim.image.lr": tune.choice([1e-6, 5e-7])}``; a grid is ``tune.grid_search([...])``."""


def check(space: SearchSpace, recipe: Recipe) -> None:
    """Raise RecipeError for a path that the recipe does not have, or a value that it does not allow.

    Choices and grids are tried value by value, ranges at both ends.
    """
    for path, domain in space.items():
        for value in values_to_try(path, domain):
            recipe.replace(path, value)


def values_to_try(path: str, domain: Domain | dict[str, list[Any]]) -> Iterator[Any]:
    """The values of a domain that stand for all of it."""
    if isinstance(domain, dict) and set(domain) == {"grid_search"}:
        yield from domain["grid_search"]
    elif isinstance(domain, Categorical):
        yield from domain.categories
    elif isinstance(domain, Float):
        yield from (domain.lower, domain.upper)
    elif isinstance(domain, Integer):
        yield from (domain.lower, domain.upper - 1)
    else:
        raise RecipeError(
            f"search space: {path} is {domain!r}; allowed: tune.choice, grid_search, (log)uniform, (log)randint"
        )


def grid_size(space: SearchSpace) -> int:
    """Combinations of all choices and grids. Raises RecipeError when the space has a continuous range."""
    size = 1
    for path, domain in space.items():
        if isinstance(domain, (Float, Integer)):
            raise RecipeError(f"search space: {path} is continuous, it has no grid")
        size *= len(list(values_to_try(path, domain)))
    return size
