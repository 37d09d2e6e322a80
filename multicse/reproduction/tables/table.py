"""Tables and figures of the papers as data, which `reproduction/reproduce.py` checks, runs and renders.

Each paper has a TOML file in this folder with its tables (T1, F2, ...) and the section ``small`` (see `small.py`).
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
"""Published numbers of a row, one per column; None if the paper has no number."""
Values = dict[str, dict[str, list[float]]]
"""Scores by label of the row and column, one per seed."""
Measure = Callable[[str, tuple[str, ...], Path], dict[str, float]]
"""Function of a model (as in `evaluate.py --model`), the columns and the folder of evaluation data that returns a value per
column."""


@dataclass(frozen=True)
class Claim:
    """Claim that a row is better than another row on average over the columns."""

    says: str
    row: str
    against: str
    effect: float | None = None
    """The paper's own effect in points, for the power of the test."""


@dataclass(frozen=True)
class Row:
    """Row of a table: a recipe to train, an untrained model to evaluate, or the reason why it cannot be run."""

    label: str
    """Unique in a table."""
    recipe: str | None = None
    """``PIPELINE/RECIPE``."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the recipe by their dotted paths."""
    model: str | None = None
    """Model of an untrained row: ``PLACE[@POOLING][+whitening|+flow]``."""
    published: str | None = None
    """Model, as in `model`, that the authors of a trained row published (`reproduce.py --published`)."""
    supervised: bool = False
    """Fine-tune the model first, on the labels of the file in the first column."""
    paper: Numbers = ()
    reference: str | None = None
    """Label of the row that p values compare with. Default: the reference of the table."""
    variants: tuple[str, ...] = ()
    """Variants of `variants.py` to show, by default those that the table names. "A and B" is one row, run as B, for
    variants without a difference in the result."""
    sd: Numbers = ()
    """Published standard deviations, one per column."""
    lacks: str | None = None
    """Reason why the row cannot be run, ``SHORT: DETAILS``; it shows published numbers only."""


@dataclass(frozen=True)
class Table:
    """Table or figure: its rows and columns, their evaluation and the plot."""

    title: str
    columns: tuple[str, ...]
    """Tasks as in `evaluate.py --tasks`: ``TASK``, ``TASK/METRIC``, or ``KIND:PLACE#METRIC`` (default: the primary metric).
    With `measure`, the keys that it returns."""
    rows: tuple[Row, ...]
    names: tuple[str, ...] = ()
    """Heads of the columns. Default: derived from `columns`."""
    average: bool = False
    """Show the mean of the columns in a last column; `Row.paper` then has one more number."""
    reference: str | None = None
    """Label of the row that p values compare with."""
    seeds: int | tuple[int, ...] | None = None
    """Number of runs per row in the paper, or their seeds. Default: one run with the seed of the row's recipe."""
    protocol: Literal["test", "released", "fast", "two-fold"] = "test"
    """Protocol of classifiers, an option of their tasks, as is `hidden`."""
    hidden: int = 0
    measure: Measure | None = None
    """Function that computes the columns if they are not tasks."""
    claims: tuple[Claim, ...] = ()
    """Claims to test."""
    tuning: tuple[int, ...] = ()
    """Seeds with which the learning rates of every trained row are tuned, see `protocol.py`. Default: not tuned."""
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Values of settings by dotted path. Each combination is tried once per trained row, and the best one on the development
    task is used for all seeds of the row."""
    mini: tuple[str, ...] | None = None
    """Columns at the small scale; ``{data}`` is the folder of datasets and ``{shards}`` the folder of their shards. Default:
    the columns with available data."""
    draw: Literal["curves", "bars", "weights"] | tuple[str, str] | None = None
    """Plot of the table: a curve per row over the columns, bars of the first column and the average, words on a colour
    scale, or rows in the plane of two columns."""
    figure: Literal["pairs", "augmentations", "circle"] | None = None
    """Figure of each model: a function of `reproduction/tables/model_figures.py`."""
    variants: bool = True
    """Show rows of the paper's pipelines as printed, as released and repaired; False in figures. In a file, a list names the
    variants of its rows."""
    open: str | None = None
    """Details that the paper does not specify, and the choice here, in one line."""


@cache
def read_tables(paper: str) -> dict[str, Table]:
    """Return the tables of a paper's TOML file by key (T1, F2, ...).

    Keys are the fields of `Table` and `Row`, with these exceptions: ``small`` of a table are the columns at the small scale,
    ``lacks`` of a table applies to its rows, ``set`` are changed settings of a row or of all trained rows of a table,
    ``unset`` are settings that become None, and "-" is a number that the paper does not have. Braces in columns are
    expanded: ``sts{12,13}``.
    """
    found = {key: given for key, given in content(paper).items() if isinstance(given, dict) and "rows" in given}
    return {key: _table({"variants": not key.startswith("F")} | given) for key, given in found.items()}


@cache
def content(paper: str) -> dict[str, Any]:
    """Return the content of a paper's TOML file."""
    return tomllib.loads(Path(__file__).with_name(f"{paper}.toml").read_text(encoding="utf-8"))


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """Replace placeholders such as ``{data}`` in all texts of a value of a TOML file, and lists by tuples."""
    if isinstance(value, dict):
        return {key: filled(one, names) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return tuple(filled(one, names) for one in value)
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[0]), value) if isinstance(value, str) else value


def _table(given: Mapping[str, Any]) -> Table:
    fields: dict[str, Any] = filled(given, {})
    if "measure" in given:
        fields["measure"] = getattr(measures, given["measure"])
    shown = {} if isinstance(given["variants"], bool) else {"variants": given["variants"]}
    fields["variants"] = bool(given["variants"])
    fields["rows"] = tuple(_row(shown | row, given.get("lacks"), given.get("set", {})) for row in given["rows"])
    fields["claims"] = tuple(Claim(**claim) for claim in given.get("claims", ()))
    fields["mini"] = fields.pop("small", None)
    for name in ("columns", "mini"):
        if fields[name] is not None:
            fields[name] = tuple(one for column in fields[name] for one in braceexpand(column))
    for name in ("lacks", "set"):
        fields.pop(name, None)
    return Table(**fields)


def _row(given: Mapping[str, Any], lacks: str | None, shared: Mapping[str, Any]) -> Row:
    fields: dict[str, Any] = filled(given, {})
    shared = filled(shared, {}) if "recipe" in given else {}
    changes = shared | fields.pop("set", {}) | dict.fromkeys(fields.pop("unset", ()))
    for numbers in ("paper", "sd"):
        fields[numbers] = tuple(None if number == "-" else number for number in fields.get(numbers, ()))
    if lacks is not None and not fields.keys() & {"recipe", "model"}:
        fields.setdefault("lacks", lacks)
    return Row(changes=changes, **fields)
