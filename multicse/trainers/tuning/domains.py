"""Ray Tune's domains as Optuna distributions, from which the values of trials are drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from ray import tune
from ray.tune.search.sample import Categorical, Domain, Float, Grid, Integer, LogUniform, Normal, Quantized, Uniform

SUPPORTED = "tune.choice, grid_search, (q)uniform, (q)loguniform, (q)randint and (q)lograndint"


def domain_of(given: Any) -> Domain:
    """Return a domain from which values can be drawn; a grid becomes a choice. Raises ValueError for other kinds."""
    if isinstance(given, dict) and set(given) == {"grid_search"}:
        given = tune.choice(given["grid_search"])
    if not isinstance(given, Domain):
        what = "a nested space; give each setting by its dotted path" if isinstance(given, dict) else f"{given!r}"
        raise ValueError(f"it is {what}. Supported: {SUPPORTED}")
    sampler, _ = _sampler(given)
    known = {Categorical: (Uniform, Grid), Float: (Uniform, LogUniform), Integer: (Uniform, LogUniform)}.get(type(given))
    if known is None or not isinstance(sampler, known):
        name = "tune.sample_from" if given.is_function() else "tune.(q)randn" if isinstance(sampler, Normal) else repr(given)
        raise ValueError(f"{name} is not supported. Supported: {SUPPORTED}")
    if isinstance(given, Categorical) and any(isinstance(value, Domain) for value in given.categories):
        raise ValueError("it is a choice of domains; choose among values, or give one domain")
    return given


def described(domain: Domain) -> list[Any]:
    """Return the content of a domain, equal in every process."""
    sampler, q = _sampler(domain)
    content = {name: value for name, value in vars(domain).items() if name != "sampler"}
    return [type(domain).__name__, type(sampler).__name__, content] + ([] if q is None else [q])


def shown(domain: Domain) -> str:
    """Return the call that makes a domain: ``loguniform(1e-05, 0.001)``."""
    if isinstance(domain, Categorical):
        return f"choice({domain.categories})"
    assert isinstance(domain, (Float, Integer))
    sampler, q = _sampler(domain)
    name = ("q" if q else "") + ("log" if isinstance(sampler, LogUniform) else "")
    limits = [domain.lower, domain.upper] + ([q] if q else [])
    return f"{name}{'randint' if isinstance(domain, Integer) else 'uniform'}({', '.join(map(str, limits))})"


def _sampler(domain: Domain) -> tuple[Any, float | None]:
    """Return the sampler of a domain, and the number whose multiples are its values, or None."""
    sampler = domain.get_sampler()
    return (sampler.get_sampler(), sampler.q) if isinstance(sampler, Quantized) else (sampler, None)


def distribution(domain: Domain) -> BaseDistribution:
    """Convert a domain of `domain_of`, with choices as JSON: Optuna supports neither tuples nor lists.

    Raises:
        ValueError: If the domain contains no value, or a choice twice.
    """
    if isinstance(domain, Categorical):
        choices = [json.dumps(value) for value in domain.categories]
        if not choices:
            raise ValueError("it has no values; give at least one")
        if again := [choice for place, choice in enumerate(choices) if choice in choices[:place]]:
            raise ValueError(f"it contains {again[0]} twice; give each value once")
        return CategoricalDistribution(choices)
    assert isinstance(domain, (Float, Integer))
    sampler, q = _sampler(domain)
    log, low, high = isinstance(sampler, LogUniform), domain.lower, domain.upper
    if q is not None:
        if q <= 0 or (isinstance(domain, Integer) and q != int(q)):
            raise ValueError(f"it has multiples of {q}; they require a number above 0, for integers a whole one")
        low, high = (_multiple(whole(_ratio(bound, q)), q) for whole, bound in ((math.ceil, low), (math.floor, high)))
    if isinstance(domain, Integer):  # Tune excludes the upper limit, but not of multiples
        low, high = math.ceil(low), math.ceil(high) - 1 if q in (None, 1) else int(high)
    if low > high:
        raise ValueError(f"it has no values between {domain.lower} and {domain.upper}")
    if isinstance(domain, Integer):
        return IntDistribution(low, high, log=log, step=1 if log else int(q or 1))  # Optuna has no logarithm with steps
    return FloatDistribution(low, high, log=log, step=None if log else q)


def _ratio(bound: float, q: float) -> float:
    """Return a bound as a multiple of q, without the rounding error of the division."""
    ratio = bound / q
    return round(ratio) if math.isclose(ratio, round(ratio)) else ratio


def _multiple(times: int, q: float) -> float:
    return float(f"{times * q:.12g}")  # 0.3 instead of 0.30000000000000004


def draw(found: optuna.Study, space: Mapping[str, Domain]) -> dict[str, Any]:
    """Return the next point of the space, drawn by the study's sampler."""
    params = found.ask({path: distribution(domain) for path, domain in space.items()}).params
    return {path: _value(domain, params[path]) for path, domain in space.items()}


def _value(domain: Domain, param: Any) -> Any:
    """Return the value of a domain for a parameter of its distribution."""
    known: Any = distribution(domain)
    if isinstance(domain, Categorical):
        return domain.categories[known.choices.index(param)]
    _, q = _sampler(domain)
    near = param if q is None else min(max(_multiple(round(param / q), q), known.low), known.high)
    return int(near) if isinstance(domain, Integer) else near


def param_of(domain: Domain, value: Any) -> Any:
    """Return the parameter for a value, which may have another type: 1 is the choice 1.0, and a list is a tuple.

    Raises:
        ValueError: If the domain does not contain the value.
    """
    known: Any = distribution(domain)
    if isinstance(domain, Categorical):
        plain = [json.loads(choice) for choice in known.choices]
        return known.choices[plain.index(json.loads(json.dumps(value)))]
    if not isinstance(value, (int, float)) or not known.low <= value <= known.high:
        raise ValueError(f"{value!r} is not between {known.low} and {known.high}")
    return type(known.low)(value)
