"""Options of a recipe: settings by their dotted names, read from a command line and listed in its help."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from multicse.data.errors import did_you_mean
from multicse.data.settings import Settings
from multicse.trainers.recipe import Recipe, RecipeError

USUAL = re.compile(
    r"encoder\.(path|vectors)|streams\.\w+\.(shards|batch_size)|optim\.[\w+]+\.lr"
    r"|run\.(output_dir|epochs|max_steps|seed|num_workers|gpus_per_worker)"
)
"""Names of the most used settings."""


def split(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the words before the first option, and the words after each option; a repeated option replaces the first."""
    before = words = list[str]()
    found = dict[str, list[str]]()
    for argument in arguments:
        if argument.startswith("--") or argument == "-h":
            name, equals, word = argument.partition("=")
            words = found[name] = [word] if equals else []
        else:
            words.append(argument)
    return before, found


def changed(recipe: Recipe, given: dict[str, list[str]]) -> Recipe:
    """Return a recipe with the settings of a command line, which the recipe converts and checks.

    Args:
        recipe: Recipe to change.
        given: Words by option (`split`).

    Raises:
        RecipeError: If a setting does not exist, or its value is missing or not allowed.
    """
    return recipe.changed(changes(recipe, given))


def changes(recipe: Recipe, given: dict[str, list[str]], others: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values that a command line gives to settings of a recipe, by dotted name.

    Args:
        recipe: Recipe that has the settings.
        given: Words by option (`split`).
        others: Options of the command that are no settings, for suggestions.

    Raises:
        RecipeError: If a setting does not exist, or its value is missing.
    """
    known, found = {path: (part, name) for path, part, name in options(recipe)}, dict[str, Any]()
    for option, words in given.items():
        path = option[2:] if option[2:] in known else option[2:].replace("-", "_")
        if path not in known:
            near = did_you_mean(option, [*others, *(f"--{name}" for name in known)])
            raise RecipeError(f"{option}: recipe {recipe.name!r} has no such setting.{near} --help-all shows all.")
        part, name = known[path]
        found[path] = _value(option, words, [*_types(type(part).model_fields[name].annotation)])
    return found


def _value(option: str, words: list[str], types: list[Any]) -> Any:
    """Return the words of an option as the recipe takes them: a list of texts, a value that a type names, or a text."""
    if words == ["None"] and NoneType in types:
        return None
    if any(get_origin(kind) is tuple for kind in types):
        return words
    if not words and bool in types:
        return True
    if len(words) != 1:
        raise RecipeError(f"{option} needs one value" + (f", given {' '.join(words)}" if words else ""))
    named = {str(value): value for kind in types if get_origin(kind) is Literal for value in get_args(kind)}
    return named.get(words[0], words[0])


def options(part: Settings, before: str = "") -> Iterator[tuple[str, Settings, str]]:
    """Yield the dotted name of every setting, the part of the recipe that has it, and its name there.

    Settings of a part come before its parts. A part that is None can be set in a file only.
    """
    parts = dict[str, Settings]()
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, Settings):
            parts[f"{before}{name}."] = value
        elif isinstance(value, dict):
            parts |= {f"{before}{name}.{key}.": one for key, one in value.items()}
        elif not any(inspect.isclass(kind) and issubclass(kind, Settings) for kind in _types(field.annotation)):
            yield f"{before}{name}", part, name
    for place, one in parts.items():
        yield from options(one, place)


def listed(recipe: Recipe, everything: bool = True) -> str:
    """Return the help of the settings of a recipe, or of the most used ones, with their values."""
    lines: list[str] = []
    last: Settings = recipe
    width = shutil.get_terminal_size().columns
    indented = textwrap.TextWrapper(width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    for path, part, name in options(recipe):
        fixed = len(get_args(kind := type(part).model_fields[name].annotation)) == 1 and get_origin(kind) is Literal
        if fixed or not (everything or USUAL.fullmatch(path)):
            continue
        if part is not last:
            about = " ".join((inspect.getdoc(part) or "").partition("\n\n")[0].split())
            lines += ["", *textwrap.wrap(f"{path.removesuffix(f'.{name}')}: {about}", width)]
        kind, value, last = type(part), getattr(part, name), part
        value = " ".join(map(str, value)) if isinstance(value, tuple) else value
        lines += [f"  --{path} {shown(kind.model_fields[name].annotation)}"]
        lines += indented.wrap(f"{documented(kind, name)} (default: {value})")
    return "\n".join(lines)


def shown(annotation: Any) -> str:
    """Return a type as a reader needs it: ``int or None``, ``float float``, ``str ...``, ``linear or cosine``."""
    return " or ".join(map(_shown, _types(annotation)))


def _shown(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return " ".join("..." if part is ... else shown(part) for part in get_args(kind))
    return "None" if kind is NoneType else getattr(kind, "__name__", str(kind))


def _types(annotation: Any) -> Iterator[Any]:
    """Yield the types of a union, without their metadata."""
    if get_origin(annotation) in (Annotated, Union, UnionType):
        for part in get_args(annotation)[: 1 if get_origin(annotation) is Annotated else None]:
            yield from _types(part)
    else:
        yield annotation


def documented(kind: type, name: str) -> str:
    """Return the docstring of a setting in one line, from the nearest class that has one."""
    return next((texts[name] for owner in kind.__mro__ if name in (texts := _docstrings(owner))), "")


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings of the settings that a class itself defines, as its source has them."""
    try:
        defined: Any = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError):  # a class of Python, or one whose source is not on this machine
        return {}
    texts = dict[str, str]()
    for setting, text in pairwise(defined.body):
        match setting, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(lines))):
                texts[name] = " ".join(lines.split())
    return texts
