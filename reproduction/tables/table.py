"""What a table or figure of a paper is, as data: `reproduction/reproduce.py` checks, runs and renders it.

Each paper has a TOML file in this folder with its tables (T1, F2, ...) and the section ``small``. What cannot be said so is
in a module of the same name: the functions that tables name, and ``mini(recipe, offline)``, the recipe of a row on the small
encoder and the data at hand.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from braceexpand import braceexpand

from multicse.pipelines.parts import SMALL_ENCODER
from multicse.reproduction.tables.offline import Offline
from multicse.trainers.recipe import Recipe

Numbers = tuple[float | None, ...]
"""The paper's numbers of a row, one a column; None where it has none."""
Values = dict[str, dict[str, list[float]]]
"""Label of a row -> column -> one value a seed."""
Measure = Callable[[str, "Table", Path], dict[str, float]]
"""(what `evaluate.py --model` takes, the table, the folder of evaluation data) -> a value for each column."""


@dataclass(frozen=True)
class Claim:
    """What is said of two rows, and tested: that the first is better on average over the columns."""

    says: str
    row: str
    against: str


@dataclass(frozen=True)
class Row:
    """A line of a table: a recipe that is trained, a model that is measured as it is, or neither, and why."""

    label: str
    """As the paper prints it; once in a table."""
    recipe: str | None = None
    """``PIPELINE/RECIPE``, for example ``sgbert/bert-base-sg``."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the recipe by their dotted paths."""
    model: str | None = None
    """``PLACE[@POOLING][+whitening|+flow]`` of a row that is not trained."""
    paper: Numbers = ()
    reference: str | None = None
    """Label of the row against which p is computed, where it is not the table's."""
    lacks: str | None = None
    """What nobody outside can have, for a row that is neither trained nor measured: the authors' sentences, a model that is
    not published. Such a row shows the paper's numbers alone."""


@dataclass(frozen=True)
class Table:
    """A table or figure: rows x columns, how they are measured, and how they are drawn."""

    title: str
    """What it shows, in a line."""
    columns: tuple[str, ...]
    """``TASK`` or ``TASK/METRIC``, of a task with a place ``KIND:PLACE#METRIC``, as `evaluate.py --tasks` names them;
    without a metric the task's primary one. Or what `measure` gives."""
    rows: tuple[Row, ...]
    names: tuple[str, ...] = ()
    """The columns' heads, where their own names do not serve."""
    average: bool = False
    """A last column with the mean of the others; `Row.paper` holds one more number then."""
    reference: str | None = None
    """Label of the row against which p is computed."""
    seeds: int | tuple[int, ...] = 1
    """Runs a row in the paper, or their seeds."""
    protocol: Literal["test", "released", "fast", "two-fold"] = "test"
    """Of classifiers, as `evaluate.py --protocol`."""
    hidden: int = 0
    """Width of the classifiers' hidden layer, as `evaluate.py --hidden`."""
    measure: Measure | None = None
    """What gives the columns, where they are no tasks."""
    claims: tuple[Claim, ...] = ()
    """What is tested, each with an effect, an interval, a p that is corrected for their number, and a verdict."""
    rates: tuple[float, ...] = ()
    """Factors on all learning rates: each is tried once for every trained row, and the best one on the development task is
    the row's, for all its seeds. None: the recipes' rates."""
    mini: tuple[str, ...] | None = None
    """The columns at the small scale, ``{data}`` is the folder of data sets and ``{shards}`` that of packed ones; None: the
    same, without those whose data is not there."""
    draw: Literal["curves"] | tuple[str, str] | None = None
    """The figure of a table that is one: a curve for each row over the columns, or rows in the plane of two columns."""
    open: str | None = None
    """What the paper leaves open of it and what is done here, in a line."""


def read_tables(file: Path, functions: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of a TOML file, by T1, F2, ...; `functions` are those that they name.

    A table's keys are the fields of `Table`, and a row's those of `Row`, but for these: ``small`` are the columns at the
    small scale, ``set`` the changes of a recipe and ``unset`` those to None, "-" is a number that the paper does not have,
    and ``lacks`` of a table is that of its rows. Columns that differ in a part are one, with braces: ``sts{12,13}``.
    """
    return {key: _table(given, functions) for key, given in content(file).items() if "rows" in given}


@cache
def paper(name: str) -> Any:
    """The module of a paper's tables, or, where its TOML file says it all, what such a module has."""
    file = Path(__file__).with_name(f"{name}.toml")
    if file.with_suffix(".py").is_file():
        return importlib.import_module(f"{__package__}.{name}")
    return SimpleNamespace(FILE=file, TABLES=read_tables(file, {}), mini=partial(small_recipe, file))


@cache
def content(file: Path) -> dict[str, Any]:
    """What a TOML file says."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


def small_changes(file: Path, recipe: Recipe, offline: Offline) -> dict[str, Any]:
    """What the section ``small`` of a paper's file, and ``small.PIPELINE`` of it, change of a recipe at the small scale.

    Each may have ``set`` and ``unset`` as a row has, ``most``, numbers that settings are cut to, and ``keep``, settings that
    are the recipe's own where something else is changed; a setting that the recipe does not have is left out. ``{data}``
    and ``{shards}`` in a text are the folders of data sets and of packed ones, ``{encoder}`` the small encoder and
    ``{paper}`` the pipeline. ``places``: what stands in for shards and word vectors, see `Offline.stand_in`.
    """
    section, given = small(file, offline), recipe.flat()
    names = {"data": str(offline.data), "shards": str(offline.shards), "encoder": SMALL_ENCODER, "paper": recipe.paper}
    places = section.get("places", {})
    changes: dict[str, Any] = {}
    for part in (section, section.get(recipe.paper, {})):
        changes |= {path: min(given[path], most) for path, most in part.get("most", {}).items() if path in given}
        changes |= {path: given[path] for path in part.get("keep", ()) if path in given}
        changes |= filled(part.get("set", {}), names) | dict.fromkeys(part.get("unset", ()))
    changes |= {path: offline.stand_in(places[place]) for path, place in given.items() if str(place) in places}
    return {path: value for path, value in changes.items() if any(f"{name}.".startswith(f"{path}.") for name in given)}


def small_recipe(file: Path, recipe: Recipe, offline: Offline) -> Recipe:
    """A row at the small scale, where `small_changes` are all there is to it."""
    return recipe.changed(small_changes(file, recipe, offline))


def small_model(file: Path, spec: str, offline: Offline) -> str:
    """The model of an untrained row at the small scale: the small encoder, with all its layers for WK, in the place of a
    published one, and what stands in for word vectors and for the sentences that are fitted on."""
    places = small(file, offline).get("places", {})
    how, _, fit = spec.partition(":")
    path = re.split("[@+]", how)[0]
    model = offline.stand_in(places[path]) if path in places else SMALL_ENCODER
    return model + how[len(path) :].replace("@wk", "@wk0") + (f":{offline.stand_in(places[fit])}" if fit else "")


def small(file: Path, offline: Offline) -> dict[str, Any]:
    """The section ``small`` of a paper, once the sets are packed that its columns name: ``needs``, methods of `Offline`."""
    section: dict[str, Any] = content(file)["small"]
    for name in section.get("needs", ()):
        getattr(offline, name)()
    return section


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """With ``{data}`` and its like replaced in all texts by `names`, and tuples for lists."""
    if isinstance(value, dict):
        return {key: filled(one, names) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return tuple(filled(one, names) for one in value)
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[0]), value) if isinstance(value, str) else value


def _table(given: Mapping[str, Any], functions: Mapping[str, Any]) -> Table:
    fields: dict[str, Any] = filled(given, {})
    if "measure" in given:
        fields["measure"] = functions[given["measure"]]
    fields["rows"] = tuple(_row(row, given.get("lacks")) for row in given["rows"])
    fields["claims"] = tuple(Claim(**claim) for claim in given.get("claims", ()))
    fields["mini"] = fields.pop("small", None)
    for name in ("columns", "mini"):
        if fields[name] is not None:
            fields[name] = tuple(one for column in fields[name] for one in braceexpand(column))
    fields.pop("lacks", None)
    return Table(**fields)


def _row(given: Mapping[str, Any], lacks: str | None) -> Row:
    fields: dict[str, Any] = filled(given, {})
    changes = fields.pop("set", {}) | dict.fromkeys(fields.pop("unset", ()))
    fields["paper"] = tuple(None if number == "-" else number for number in fields.get("paper", ()))
    if lacks is not None and not fields.keys() & {"recipe", "model"}:
        fields.setdefault("lacks", lacks)
    return Row(changes=changes, **fields)
