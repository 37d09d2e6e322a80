"""Search spaces: dotted recipe paths to Ray Tune domains, checked against the recipe before Ray starts."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import optuna
from optuna.samplers import RandomSampler
from ray import tune
from ray.tune.search.sample import Categorical, Domain, Float, Integer

from multicse.trainers.engine.checks import check_settings
from multicse.trainers.engine.launch import resolve
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning.domains import distribution, domain_of, draw, param_of

SearchSpace = Mapping[str, Domain | dict[str, list[Any]]]
"""For example ``{"optim.image.lr": tune.choice([1e-6, 5e-7])}``; grids use ``tune.grid_search([...])``."""

DRAWS = 100
"""Number of values that are drawn from a domain to check it."""
AGAIN = "the same command resumes an interrupted sweep; give another --output to start a new one"
UNUSED = {
    "run.output_dir": "every trial has its own folder; give the folder of the sweep as --output",
    "run.save_steps": "trials save a checkpoint at every evaluation; set evaluation.eval_steps",
    "run.keep_every": "trials keep their latest checkpoints only; train the best settings with it",
    "run.resume": AGAIN,
    "run.overwrite": AGAIN,
}
"""Settings that a sweep does not use, with remedies."""
SEEDS = "the seeds are --seeds; leave it out"


def fixed(path: str, recipe: Recipe) -> str | None:
    """Return why a setting must not vary between trials, with the remedy, or None if it may.

    A trial trains with its own seed, folder and number of checkpoints, and is compared with others by the same evaluation.
    """
    for name in recipe.flat():
        if name != path and not name.startswith(f"{path}."):
            continue
        if name == "run.seed":
            return SEEDS
        if name in UNUSED:
            return UNUSED[name]
        if name.startswith("evaluation."):
            return "trials are compared by the same evaluation; set it for all trials"
        if name.startswith("export.") or name == "name" or name in recipe.machine():
            return "it does not change the result of a trial; set it for all trials"
        if name.startswith("method.fresh"):
            return "it cannot vary, since all trials start from the same new encoder"
    return None


def check_space(space: SearchSpace, recipe: Recipe) -> None:
    """Raise RecipeError if trials cannot vary a setting of the space, or the recipe does not allow a value.

    Every choice and grid value, both ends of every range, and a hundred draws are tried as the only change of the recipe, as
    they are stored in the records of the trials.
    """
    if not space:
        raise RecipeError("search space: it is empty; name at least one setting, or set --trials 1")
    for path in space:
        if reason := fixed(path, recipe):
            raise RecipeError(f"search space: {path}: {reason}")
    for path, other in itertools.permutations(space, 2):
        if other.startswith(f"{path}."):
            raise RecipeError(f"search space: {path} contains {other}; give only one of them")
    domains = sampled(space, recipe)
    for path, domain in domains.items():
        with named(path):
            drawn = draws(domain)
        for value in [*values_to_try(domain), *drawn]:
            with named(f"{path}={value!r}"):
                kept = json.loads(json.dumps(stored(recipe, path, value)))
                check_settings(recipe.replace(path, kept))
                param_of(domain, kept)


def draws(domain: Domain) -> list[Any]:
    """Return the different values among a hundred draws from a domain."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = optuna.create_study(sampler=RandomSampler(seed=0))
    values = [draw(found, {"value": domain})["value"] for _ in range(DRAWS)]
    return [value for place, value in enumerate(values) if value not in values[:place]]


def stored(recipe: Recipe, path: str, value: Any) -> Any:
    """Return the value of a setting as recipe and records store it, of the setting's type and with absolute paths."""
    changed = recipe.replace(path, value)
    if isinstance(value, (str, list, tuple, dict)):
        changed = resolve(changed)
    return values_of(changed, [path])[path]


def sampled(space: SearchSpace, recipe: Recipe) -> dict[str, Domain]:
    """Return the space with grids replaced by choices, and choices as the recipe stores them.

    Raises:
        RecipeError: If a kind of domain is not supported, or the recipe does not allow a choice.
    """
    found = {}
    for path, given in space.items():
        with named(path):
            domain = domain_of(given)
        if isinstance(domain, Categorical):
            choices = []
            for value in domain.categories:
                with named(f"{path}={value!r}"):
                    choices.append(stored(recipe, path, value))
            domain = tune.choice(choices)
        with named(path):
            distribution(domain)
        found[path] = domain
    return found


@contextlib.contextmanager
def named(place: str) -> Iterator[None]:
    """Convert errors to RecipeError, with a place in the search space at their start."""
    try:
        yield
    except (ValueError, TypeError, ArithmeticError) as error:
        raise RecipeError(f"search space: {place}: {error}") from None


def values_to_try(given: Domain | dict[str, list[Any]]) -> list[Any]:
    """Return the values that represent a domain: all choices, or both ends of a range."""
    domain = domain_of(given)
    known: Any = distribution(domain)
    return domain.categories if isinstance(domain, Categorical) else [known.low, known.high]


def grid(space: SearchSpace) -> list[dict[str, Any]]:
    """Return all combinations of all choices and grids; raise RecipeError if the space contains a continuous range."""
    for path, domain in space.items():
        if isinstance(domain, (Float, Integer)):
            raise RecipeError(
                f"search space: {path} is continuous, so grid search is not possible; choose a discrete space, or "
                "--searcher optuna or random"
            )
    combinations = itertools.product(*(values_to_try(domain) for domain in space.values()))
    return [dict(zip(space, combination, strict=True)) for combination in combinations]


def values_of(recipe: Recipe, paths: list[str]) -> dict[str, Any]:
    """Return the values of a recipe at dotted paths, as its JSON contains them."""
    content, out = recipe.model_dump(mode="json"), {}
    for path in paths:
        node: Any = content
        for part in path.split("."):
            node = node[part]
        out[path] = node
    return out
