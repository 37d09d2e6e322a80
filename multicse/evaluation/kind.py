"""Tasks by name: kinds of tasks on a user's own data, and families of tasks with fixed names. Their options are settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import ValidationError

from multicse.data import shard_urls
from multicse.data.errors import did_you_mean
from multicse.data.settings import Settings, Shards
from multicse.evaluation.task import EvaluationError, Task, metric_name


class Options(Settings):
    """Options of tasks, as fields."""

    @classmethod
    def read(cls, task: str, given: Mapping[str, str], **fixed: str) -> Self:
        """Read options; raise EvaluationError, which names the option, for an unknown option or a wrong value.

        Args:
            task: Task without options, for messages.
            given: Options as texts.
            fixed: Fields that are no options.
        """
        for option in given:
            if option not in (known := cls.options()):
                raise EvaluationError(
                    f"task {task}: unknown option {option!r}.{did_you_mean(option, known)} Options: "
                    f"{', '.join(known) or 'none'}"
                )
        try:
            return cls.model_validate({**given, **fixed})
        except ValidationError as error:
            item = error.errors()[0]
            name = ".".join(map(str, item["loc"]))
            reason = item["msg"].removeprefix("Value error, ")
            option = f"option {name}={given[name]}: " if name in given else ""
            raise EvaluationError(f"task {task}: {option}{reason}") from None

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """Return the names of the options."""
        return tuple(name for name in cls.model_fields if name not in ("kind", "place", "family"))


class Kind(Options):
    """Tasks named ``KIND:PLACE?OPTION=VALUE&OPTION=VALUE``. A subclass defines `kind`; its docstring describes the data."""

    plugin: ClassVar = ("task", "kind")
    trains: ClassVar[bool] = False
    """The task trains a classifier, so no checkpoint may be chosen on it."""

    kind: str
    place: Shards

    @classmethod
    def about(cls) -> str:
        """Return what the data of the tasks are: the first paragraph of the docstring."""
        return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].rstrip(".").split())

    @classmethod
    def may_be_development(cls, place: str) -> bool:
        """Return whether a place may be a development set, apart from its name."""
        return not cls.trains

    @property
    def title(self) -> str:
        """Return the name of the task in reports."""
        name = Path(self.place.split("::")[0]).name.removesuffix(".gz").removesuffix(".tsv").removesuffix(".tar")
        return f"{self.kind}:{metric_name(name)}"

    def make(self, seed: int) -> Task:
        """Return the task; `seed` determines splits and classifiers."""
        raise NotImplementedError  # the interface: every kind defines it


class Family(Options):
    """Tasks with fixed names, which read the data folder, ``NAME?OPTION=VALUE``. A subclass defines `family` and `names`."""

    plugin: ClassVar = ("family", "family")
    names: ClassVar[tuple[str, ...]]

    family: str

    @classmethod
    def found(cls, folder: Path, pairs: Sequence[str]) -> list[str]:
        """Return the names of the tasks with data in a folder, which has the sets of rated pairs with the names `pairs`."""
        raise NotImplementedError  # the interface: every family defines it

    def make(self, name: str, data: str | Path | None, pairs: Callable[[str], Any], seed: int) -> Task:
        """Return a task.

        Args:
            name: Name of the task.
            data: The data folder that the user gave.
            pairs: Function that returns the task of rated pairs (`sts.PairTask`) with a name.
            seed: Seed of classifiers.
        """
        raise NotImplementedError  # the interface: every family defines it


class Named(NamedTuple):
    """Parts of the name of a task: ``NAME[:PLACE][?OPTIONS]``."""

    name: str
    place: str | None
    options: dict[str, str]


def split(task: str) -> Named:
    """Split the name of a task; the name of an existing file may contain a question mark.

    Raises:
        EvaluationError: If the options are not of the form ``NAME=VALUE&NAME=VALUE``.
    """
    name, colon, place = task.partition(":")
    text = place if colon else name
    text, _, query = (text, "", "") if colon and Path(text).exists() else text.partition("?")
    try:
        options: dict[str, Any] = shard_urls.parse_options(query)
    except ValueError as error:
        raise EvaluationError(f"{text}?{query}: {error}; write ?NAME=VALUE&NAME=VALUE") from None
    return Named(name if colon else text, text if colon else None, options)
