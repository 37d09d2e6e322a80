"""Settings of a recipe: the base of all their classes, and checks that several of them share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict

from multicse import plugins

T = TypeVar("T")
S = TypeVar("S", bound=Sequence[Hashable])


class Settings(BaseModel):
    """Frozen part of a recipe; unknown fields, and numbers that are infinite or NaN, are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    plugin: ClassVar[tuple[str, str] | None] = None
    """Kind in `multicse.plugins`, and the field whose default is the name, of classes that are found by their name; a class
    is registered if it defines this field itself."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class."""
        kind, field = cls.plugin or ("", "")
        if field in get_annotations(cls) and isinstance(name := cls.model_fields[field].default, str):
            plugins.add(kind, name, cls)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle settings that a user's file defines with the text of the file, which other processes lack."""
        module = type(self).__module__
        text = plugins.loaded().get(module)
        if text is None:
            return super().__reduce_ex__(protocol)
        return _unpickled, (module, text, type(self).__name__, self.model_dump())


def _unpickled(module: str, text: str, name: str, values: dict[str, Any]) -> Settings:
    own = sys.modules[module] if plugins.loaded().get(module) == text else plugins.load_source(module, text)
    made: Settings = getattr(own, name).model_validate(values)
    return made


def by_name(given: Any, base: type[Settings]) -> Any:
    """Read settings of a kind whose class is found by its name, for a `BeforeValidator`.

    Args:
        given: Values by field, or settings.
        base: Base of the classes, with `Settings.plugin`.

    Raises:
        ValueError: If no class has this name, or another class has the name of the given one.
    """
    kind, field = base.plugin or ("", "")
    name = given.get(field) if isinstance(given, dict) else getattr(given, field, None)
    if not isinstance(given, (dict, base)):
        return given  # pydantic refuses it
    found = plugins.get(kind, str(name))
    if isinstance(given, dict):
        return found.model_validate(given)
    own = type(given)
    if (own.__module__, own.__qualname__) != (found.__module__, found.__qualname__):
        raise ValueError(
            f"{own.__name__} has the {field} {name!r} of {found.__name__}; define one in the class: "
            f"{field}: Literal['mine'] = 'mine'"
        )
    return given


def _each_once(values: S) -> S:
    twice = [value for value in dict.fromkeys(values) if list(values).count(value) > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} is given twice; name it once")
    return values


def _no_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("an element is empty; remove it")
    return text


EachOnce = AfterValidator(_each_once)
"""For tuples whose elements must differ."""
Name = Annotated[str, AfterValidator(_no_blank)]
"""Text with at least one character that is not a blank."""


class Mark(NamedTuple):
    """Kind of object that a setting refers to: a path, a task or a resource. `marked` finds settings by their kind."""

    kind: Literal["place", "shards", "task", "machine"]
    words: tuple[str, ...] = ()
    """Values of the setting that name nothing, such as ``small`` for a table of the package."""

    def on_each(self, change: Callable[[str], str], value: Any) -> Any:
        """Return a value in which every text, except for `words`, is changed; None and numbers stay."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.on_each(change, one) for one in value)
        return change(value) if isinstance(value, str) and value not in self.words else value


Place = Annotated[str, Mark("place")]
"""File or folder, or the ID of a model."""
Shards = Annotated[str, Mark("shards")]
"""Shard URLs."""
TaskName = Annotated[Name, Mark("task")]
"""Name of an evaluation task, KIND:PLACE for one on the user's data."""
Machine = Annotated[T, Mark("machine")]
"""Setting of the machine, or of what is done with the result: it does not determine the result."""


def marked(settings: Settings, before: str = "") -> Iterator[tuple[str, Mark, Any]]:
    """Yield the dotted path, the mark and the value of every setting that has a mark, also of those in other settings.

    Args:
        settings: Settings, such as a recipe.
        before: Beginning of the paths.
    """
    for name, mark in marks(type(settings)).items():
        value = getattr(settings, name)
        if mark is not None:
            yield f"{before}{name}", mark, value
        for key, part in (value if isinstance(value, dict) else {"": value}).items():
            if isinstance(part, Settings):
                yield from marked(part, f"{before}{name}.{key}." if key else f"{before}{name}.")


@cache
def marks(kind: type[Settings]) -> dict[str, Mark | None]:
    """Return the mark of every setting of a class, or None."""
    return {name: next(_found(field.annotation, *field.metadata), None) for name, field in kind.model_fields.items()}


def _found(*parts: Any) -> Iterator[Mark]:
    """Yield the marks in annotations, whose parts are annotations as well."""
    for part in parts:
        if isinstance(part, Mark):
            yield part
        else:
            yield from _found(*get_args(part))


def refuse_idle(settings: BaseModel, names: Iterable[str], why: str, place: str = "") -> None:
    """Raise ValueError for a setting that was changed although nothing uses it.

    Args:
        settings: Settings that contain it.
        names: Fields that nothing uses, each with a default.
        why: Why, and what to change: a sentence without a capital letter and a full stop.
        place: Path of `settings` with a dot at its end, for the message.
    """
    fields = type(settings).model_fields
    for name in names:
        value = getattr(settings, name)
        if value != fields[name].default:
            shown = "" if isinstance(value, BaseModel) else f"={value!r}"
            raise ValueError(f"{place}{name}{shown} has no effect: {why}")
