"""What a table or figure of a paper is, as data: `reproduction/reproduce.py` checks, runs and renders it.

Each paper has a TOML file in this folder with its tables (T1, F2, ...), and a module with the functions that they name and
``mini(recipe, offline)``, which gives the recipe of a row on the small encoder and the data at hand.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from braceexpand import braceexpand

from multicse.pipelines.parts import SMALL_ENCODER
from multicse.reproduction.tables.offline import Offline
from multicse.trainers.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = tuple[float | None, ...]
"""The paper's numbers of a row, one a column; None where it has none."""
Values = dict[str, dict[str, list[float]]]
"""Label of a row -> column -> one value a seed."""
Measure = Callable[[str, "Table", Path], dict[str, float]]
"""(what `evaluate.py --model` takes, the table, the folder of evaluation data) -> a value for each column, and what else the
figure is drawn from."""


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
    """``PIPELINE/RECIPE``, for example ``sgbert/bert-base``."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the recipe by their dotted paths."""
    model: str | None = None
    """``PLACE[@POOLING][+whitening|+flow]`` of a row that is not trained."""
    paper: Numbers = ()
    measure: Measure | None = None
    """What gives this row's columns in place of the table's `measure`: of a model that must be made first."""
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
    draw: Callable[[Table, Values], Figure] | None = None
    """The figure of a table that is one."""
    picture: Callable[[str, Path], Figure] | None = None
    """The figure of one model: (what `evaluate.py --model` takes, the folder of evaluation data) -> it."""
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
def content(file: Path) -> dict[str, Any]:
    """What a TOML file says."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


def small_changes(file: Path, recipe: Recipe, offline: Offline, part: str | None = None) -> dict[str, Any]:
    """What the section ``small`` of a paper's file, or ``small.PART`` of it, changes of a recipe at the small scale.

    ``set`` and ``unset`` are as in a row, ``most`` are numbers that settings are cut to. ``{data}`` in a text is the folder
    of data sets, and ``{encoder}`` the small encoder.
    """
    section = content(file)["small"] if part is None else content(file)["small"][part]
    given, places = recipe.flat(), {"{data}": str(offline.data), "{encoder}": SMALL_ENCODER}
    changes = {path: min(given[path], most) for path, most in section.get("most", {}).items()}
    for path, value in _values(section.get("set", {})).items():
        for name, place in places.items():
            value = value.replace(name, place) if isinstance(value, str) else value
        changes[path] = value
    return changes | dict.fromkeys(section.get("unset", ()))


def _table(given: Mapping[str, Any], functions: Mapping[str, Any]) -> Table:
    fields = _fields(given, functions)
    fields["rows"] = tuple(_row(row, given, functions) for row in given["rows"])
    fields["claims"] = tuple(Claim(**claim) for claim in given.get("claims", ()))
    fields["mini"] = fields.pop("small", None)
    for name in ("columns", "mini"):
        if fields[name] is not None:
            fields[name] = tuple(one for column in fields[name] for one in braceexpand(column))
    fields.pop("lacks", None)
    return Table(**fields)


def _row(given: Mapping[str, Any], table: Mapping[str, Any], functions: Mapping[str, Any]) -> Row:
    fields = _fields(given, functions)
    changes = _values(fields.pop("set", {})) | dict.fromkeys(fields.pop("unset", ()))
    fields["paper"] = tuple(None if number == "-" else number for number in fields.get("paper", ()))
    if "lacks" in table and not fields.keys() & {"recipe", "model"}:
        fields.setdefault("lacks", table["lacks"])
    return Row(changes=changes, **fields)


def _fields(given: Mapping[str, Any], functions: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: functions[given[name]] for name in ("measure", "draw", "picture") if name in given}
    return _values(given) | named


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    """With tuples for lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
