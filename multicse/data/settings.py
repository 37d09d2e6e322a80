"""Settings of a recipe: the base of all their classes, and checks that several of them share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict

T = TypeVar("T", bound=Sequence[Hashable])


class Settings(BaseModel):
    """Frozen part of a recipe; unknown fields, and numbers that are infinite or NaN, are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _each_once(values: T) -> T:
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
