"""What a recipe does, as far as three steps of it show, and other values for each of its settings."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import torch
from pydantic import BaseModel

from multicse.trainers.engine.hosts import Host
from multicse.trainers.engine.loop import Engine, fingerprint
from multicse.trainers.recipe import Recipe
from tests.worlds import Memory


class Setting(NamedTuple):
    """A setting of a recipe."""

    path: str
    key: str
    """Class that defines it, and its name: equal for all recipes and streams that have it."""
    annotation: Any
    value: Any


def settings(part: Any, path: str = "") -> Iterator[Setting]:
    """All settings of a recipe that have a value of their own, in the order of the recipe."""
    if isinstance(part, dict):
        for name, value in part.items():
            yield from settings(value, f"{path}{name}.")
    elif isinstance(part, BaseModel):
        for name, field in type(part).model_fields.items():
            value = getattr(part, name)
            if isinstance(value, BaseModel) or (isinstance(value, dict) and value):
                yield from settings(value, f"{path}{name}.")
            else:
                owner = next(kind for kind in type(part).__mro__ if name in inspect.get_annotations(kind))
                yield Setting(path + name, f"{owner.__name__}.{name}", field.annotation, value)


def others(annotation: Any, value: Any) -> list[Any]:
    """Values of the type that differ from `value`; some of them may be refused."""
    kind, parts = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return others(parts[0], value)
    if kind is Literal:
        found = list(parts)
    elif kind is Union or type(annotation).__name__ == "UnionType":
        found = [*itertools.chain(*(others(part, value) for part in parts))]
    elif annotation is type(None):
        found = [None]
    elif annotation is bool:
        found = [True, False]
    elif annotation in (int, float):
        steps = [value + 1, 2 * value, value - 1, value // 2] if isinstance(value, int) and value else [1, 2, 8]
        found = [step for step in steps if step >= 0]
        if annotation is float:
            found = [value / 2, value + 0.1, 2 * value] if value else [0.1, 0.5, 1.5]
    elif kind is tuple and isinstance(value, tuple) and value and isinstance(value[0], (int, float)):
        found = [
            (*value[:place], new, *value[place + 1 :])
            for place in (0, len(value) - 1)
            for new in others(type(value[place]), value[place])
        ]
    else:
        found = []
    return [one for number, one in enumerate(found) if one != value and one not in found[:number]]


class _Host(Host):
    """Starts anew, and notes checkpoints instead of writing them."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(trouble=None))  # type: ignore[arg-type]
        self.device, self.saved = torch.device("cpu"), list[tuple[float, bool]]()

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path | None]:
        yield None

    def save(self, write_files: Any, metrics: dict[str, float], last: bool) -> None:
        self.saved.append((metrics["step"], last))


def observed(recipe: Recipe) -> str:
    """Everything that training shows but times: metrics of all steps, checkpoints, scores, and a hash of the weights."""
    host, memory = _Host(), Memory()
    engine = Engine(recipe, host, memory)  # type: ignore[arg-type]
    result = engine.train()
    metrics = {
        step: {name: value for name, value in values.items() if not name.startswith("time/") and "wait" not in name}
        for step, values in memory.values.items()
    }
    kept = ("before", "baseline", "after", "steps", "best_step", "best_score", "skipped", "fingerprints")
    return repr([metrics, host.saved, [result[name] for name in kept], fingerprint(engine.chosen)])
