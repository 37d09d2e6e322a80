"""Scripts: one per method, with its recipes, and one per command."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from functools import partial, wraps
from typing import Annotated, Any

from tyro.conf import arg
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo
from tyro.constructors._struct_spec_dataclass import dataclass_rule
from tyro.constructors._struct_spec_pydantic import pydantic_rule

RULES = ConstructorRegistry()
"""Rules by which tyro reads the options of all scripts."""


@RULES.struct_rule
def _arguments(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Read options of commands. An empty default is not shown after a text that describes the default."""
    spec = dataclass_rule(info) if is_dataclass(info.type) else None
    return spec and replace(spec, fields=tuple(map(_argument, spec.fields)))


@RULES.struct_rule
def _settings(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Read settings of recipes without checking them: `Recipe.checked` or `Recipe.replace` does it for a whole recipe."""
    spec = pydantic_rule(info)
    if spec is None:
        return None
    make: Any = wraps(info.type, updated=())(lambda **values: info.type.model_construct(**values))  # its docstring is shown
    fields = (replace(field, helptext=partial(_text, field)) for field in spec.fields)
    return replace(spec, instantiate=make, fields=tuple(fields))


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
