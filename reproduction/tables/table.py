"""What a table or figure of a paper is, as data: `reproduction/reproduce.py` checks, runs and renders it.

Each paper has a TOML file in this folder with its tables (T1, F2, ...) and the section ``small`` (`small.py`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from braceexpand import braceexpand

from multicse.reproduction.tables import measures

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
    """``PIPELINE/RECIPE``, for example ``sgbert/bert-base``."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the recipe by their dotted paths."""
    model: str | None = None
    """``PLACE[@POOLING][+whitening|+flow]`` of a row that is not trained."""
    supervised: bool = False
    """Whether that model is first trained with the labels of the file that the first column names."""
    paper: Numbers = ()
    reference: str | None = None
    """Label of the row against which p is computed, where it is not the table's."""
    variants: tuple[str, ...] = ()
    """Variants of `variants.py` that the row has, of those that its pipeline has. Empty: all."""
    sd: Numbers = ()
    """The paper's standard deviations of its numbers, one per column."""
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
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Values of settings, by their dotted paths: each combination is run once for every trained row, and the best one on the
    development task is used for all seeds of the row."""
    mini: tuple[str, ...] | None = None
    """The columns at the small scale, ``{data}`` is the folder of data sets and ``{shards}`` that of packed ones; None: the
    same, without those whose data is not there."""
    draw: Literal["curves", "bars", "weights"] | tuple[str, str] | None = None
    """The figure of a table that is one: a curve for each row over the columns, bars of the first column and the average,
    words on colours, or rows in the plane of two columns."""
    picture: Literal["pairs", "augmentations", "circle"] | None = None
    """The figure of each model: a function of `reproduction/tables/pictures.py`."""
    variants: bool = True
    """Whether rows of the paper's own pipelines are there as printed, as released and repaired; not in figures."""
    open: str | None = None
    """What the paper leaves open of it and what is done here, in a line."""


@cache
def read_tables(paper: str) -> dict[str, Table]:
    """The tables of a paper's TOML file, by T1, F2, ...

    A table's keys are the fields of `Table`, and a row's those of `Row`, but for these: ``small`` are the columns at the
    small scale, ``set`` the changes of a recipe and ``unset`` those to None, "-" is a number that the paper does not have,
    and ``lacks`` of a table is that of its rows. Columns that differ in a part are one, with braces: ``sts{12,13}``.
    """
    found = {key: given for key, given in content(paper).items() if isinstance(given, dict) and "rows" in given}
    return {key: _table({"variants": not key.startswith("F")} | given) for key, given in found.items()}


@cache
def content(paper: str) -> dict[str, Any]:
    """Return what a paper's TOML file contains."""
    return tomllib.loads(Path(__file__).with_name(f"{paper}.toml").read_text(encoding="utf-8"))


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """With ``{data}`` and its like replaced in all texts by `names`, and tuples for lists."""
    if isinstance(value, dict):
        return {key: filled(one, names) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return tuple(filled(one, names) for one in value)
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[0]), value) if isinstance(value, str) else value


def _table(given: Mapping[str, Any]) -> Table:
    fields: dict[str, Any] = filled(given, {})
    if "measure" in given:
        fields["measure"] = getattr(measures, given["measure"])
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
    for numbers in ("paper", "sd"):
        fields[numbers] = tuple(None if number == "-" else number for number in fields.get(numbers, ()))
    if lacks is not None and not fields.keys() & {"recipe", "model"}:
        fields.setdefault("lacks", lacks)
    return Row(changes=changes, **fields)
