"""All commands but the papers' scripts, how a command line becomes a recipe, and the functions of `multicse` (`api`)."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Annotated, Any

import tyro
from tyro.conf import arg
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo
from tyro.constructors._struct_spec_dataclass import dataclass_rule

from multicse.trainers.engine.progress import announce

RULES = ConstructorRegistry()
"""Rules by which tyro reads the options of commands; `options` reads settings of recipes."""


def announce_imports() -> None:
    """Say that the libraries are loaded next, which takes seconds, or a minute on a busy machine; not a second time."""
    if "transformers" not in sys.modules:
        announce("Loading torch and transformers")


def read_options(kind: Any, argv: Sequence[str] | None, **settings: Any) -> Any:
    """Return what `tyro.cli` reads; raise ValueError with one line instead of its box if an option is wrong or missing."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=argv, registry=RULES, **settings)
    except SystemExit as end:
        if end.code != 2:
            raise
    parts = [list[str]()]
    for line in said.getvalue().splitlines()[1:]:  # the first is a title
        text = line.strip("│ ")
        if text.strip("─-╰╯"):
            parts[-1].append(text)
        else:  # a rule
            parts.append([])
    problem, *hints = (" ".join(part) for part in parts if part)
    raise ValueError(". ".join([problem.rstrip("."), *(hint for hint in hints if not hint.startswith("For full"))]))


@RULES.struct_rule
def _arguments(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Read options of commands. An empty default is not shown after a text that describes the default."""
    spec = dataclass_rule(info) if is_dataclass(info.type) else None
    return spec and replace(spec, fields=tuple(map(_argument, spec.fields)))


def _argument(field: StructFieldSpec) -> StructFieldSpec:
    def hint(default: str) -> str:
        return "" if "Default: " in (_text(field) or "") else f"(default: {default})"

    kind: Any = field.type
    if field.default is None or field.default == ():
        kind = Annotated[kind, arg(help_behavior_hint=hint)]
    return replace(field, helptext=partial(_text, field), type=kind)


def _text(field: StructFieldSpec) -> str | None:
    """Return a help without the line breaks of the source."""
    text = field.helptext() if callable(field.helptext) else field.helptext
    return text and " ".join(text.split())
