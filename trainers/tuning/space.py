"""A search space: dotted recipe paths to Ray Tune domains, checked against the recipe before Ray starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ray import tune
from ray.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform

from multicse.trainers.engine.checks import check_settings
from multicse.trainers.recipe import Recipe, RecipeError

SearchSpace = Mapping[str, Domain | dict[str, list[Any]]]
"""``{"optim.image.lr": tune.choice([1e-6, 5e-7])}``; a grid is ``tune.grid_search([...])``."""


def check(space: SearchSpace, recipe: Recipe) -> None:
    """Raise RecipeError for a path that the recipe does not have, or a value that it does not allow.

    Choices and grids are tried value by value, ranges at both ends, each as the only change of the recipe.
    """
    for path, domain in space.items():
        for value in values_to_try(path, domain):
            try:
                changed = recipe.replace(path, value)
            except RecipeError as error:
                raise RecipeError(f"search space: {error}") from None
            try:
                check_settings(changed)
            except RecipeError as error:
                raise RecipeError(f"search space: {path}={value!r}: {error}") from None


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


def grid(space: SearchSpace) -> list[dict[str, Any]]:
    """All combinations of all choices and grids. Raises RecipeError when the space has a continuous range."""
    for path, domain in space.items():
        if isinstance(domain, (Float, Integer)):
            raise RecipeError(
                f"search space: {path} is continuous, it has no grid; choose another space, or the searcher optuna or random"
            )
    values = [values_to_try(path, domain) for path, domain in space.items()]
    return [dict(zip(space, combination, strict=True)) for combination in itertools.product(*values)]


def draws(space: SearchSpace, count: int, seed: int) -> list[dict[str, Any]]:
    """`count` independent draws; the values of a grid are equally likely. The same seed gives the same draws."""
    random = np.random.RandomState(seed % 2**32)
    domains = sampled(space)
    return [{path: _plain(domain.sample(random_state=random)) for path, domain in domains.items()} for _ in range(count)]


def sampled(space: SearchSpace) -> dict[str, Domain]:
    """The space with grids as choices."""
    return {
        path: tune.choice(domain["grid_search"]) if isinstance(domain, dict) else domain for path, domain in space.items()
    }


def holding(space: SearchSpace, recipe: Recipe) -> dict[str, Domain]:
    """The space as `sampled`, widened where it has to be to hold the recipe's own values.

    The first trial is the recipe as it stands, and what models the space (TPE, fANOVA) takes no point from outside. Raises
    RecipeError where that is no number and the domain is a range.
    """
    return {path: _holding(path, domain, values_of(recipe, [path])[path]) for path, domain in sampled(space).items()}


def _holding(path: str, domain: Domain, value: Any) -> Domain:
    if isinstance(domain, Categorical):
        return domain if value in domain.categories else tune.choice([value, *domain.categories])
    if not isinstance(value, (int, float)):
        raise RecipeError(
            f"search space: {path} is {value!r} in the recipe, which a range cannot hold; give the recipe a number, use "
            f"tune.choice([{value!r}, ...]) in the space, or --searcher random with --scheduler asha or none"
        )
    if domain.lower <= value <= domain.upper:
        return domain
    low, high = min(domain.lower, value), max(domain.upper, value)
    logarithmic = isinstance(domain.get_sampler(), LogUniform) and low > 0  # a rate of 0 has no logarithm
    if isinstance(domain, Integer):
        return (tune.lograndint if logarithmic else tune.randint)(low, max(high, value + 1))
    return (tune.loguniform if logarithmic else tune.uniform)(low, high)


def within_a_run(path: str, domain: Any) -> bool:
    """Whether a value may change while a run goes on: numbers of the method and of optimizers; not what shapes weights,
    streams or the number of steps."""
    return isinstance(domain, Float) and path.startswith(("method.", "optim."))


def values_of(recipe: Recipe, paths: list[str]) -> dict[str, Any]:
    """The recipe's own values at dotted paths."""
    out = {}
    for path in paths:
        node: Any = recipe
        for part in path.split("."):
            node = node[part] if isinstance(node, dict) else getattr(node, part)
        out[path] = node
    return out


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's, which JSON takes."""
    return value.item() if isinstance(value, np.generic) else value
