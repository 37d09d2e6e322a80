"""All commands but the papers' scripts, how a command line becomes a recipe, and the functions of `multicse` (`api`)."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from functools import partial
from typing import Annotated, Any

from tyro.conf import arg
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo
from tyro.constructors._struct_spec_dataclass import dataclass_rule

RULES = ConstructorRegistry()
"""Rules by which tyro reads the options of commands; `options` reads settings of recipes."""


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
