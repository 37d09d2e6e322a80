"""Search spaces: dotted recipe paths to Ray Tune domains, checked against the recipe before Ray starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from ray import tune
from ray.tune.search.sample import Categorical, Domain, Float, Integer

from multicse.trainers.engine.checks import check_settings
from multicse.trainers.recipe import Recipe, RecipeError

SearchSpace = Mapping[str, Domain | dict[str, list[Any]]]
"""For example ``{"optim.image.lr": tune.choice([1e-6, 5e-7])}``; grids use ``tune.grid_search([...])``."""


def check(space: SearchSpace, recipe: Recipe) -> None:
    """Raise RecipeError if the recipe does not contain a path of the space or does not allow a value.

    Every choice and grid value, and both ends of every range, is tried as the only change of the recipe.
    """
    if not space:
        raise RecipeError("search space: it is empty; name at least one setting, or set --trials 1")
    for path, domain in space.items():
        if not (values := list(values_to_try(path, domain))):
            raise RecipeError(f"search space: {path} has no values; give at least one")
        if path.startswith("method.fresh"):
            raise RecipeError(f"search space: {path} cannot vary, since all trials start from the same new encoder")
        for value in values:
            try:
                check_settings(recipe.replace(path, value))
            except RecipeError as error:
                raise RecipeError(f"search space: {path}={value!r}: {error}") from None


def values_to_try(path: str, domain: Domain | dict[str, list[Any]]) -> Iterator[Any]:
    """Yield the values that represent the domain of a setting; raise RecipeError if its kind is not supported."""
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
            f"search space: {path} is {domain!r}; supported: tune.choice, grid_search, (log)uniform, (log)randint"
        )


def grid(space: SearchSpace) -> list[dict[str, Any]]:
    """Return all combinations of all choices and grids; raise RecipeError if the space contains a continuous range."""
    for path, domain in space.items():
        if isinstance(domain, (Float, Integer)):
            raise RecipeError(
                f"search space: {path} is continuous, so grid search is not possible; choose a discrete space, or "
                "--searcher optuna or random"
            )
    values = [values_to_try(path, domain) for path, domain in space.items()]
    return [dict(zip(space, combination, strict=True)) for combination in itertools.product(*values)]


def sampled(space: SearchSpace) -> dict[str, Domain]:
    """Return the space with grids replaced by choices."""
    return {
        path: tune.choice(domain["grid_search"]) if isinstance(domain, dict) else domain for path, domain in space.items()
    }


def values_of(recipe: Recipe, paths: list[str]) -> dict[str, Any]:
    """Return the values of a recipe at dotted paths."""
    out = {}
    for path in paths:
        node: Any = recipe
        for part in path.split("."):
            node = node[part] if isinstance(node, dict) else getattr(node, part)
        out[path] = node
    return out
