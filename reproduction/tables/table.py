"""What a table or figure of a paper is, as data: `pipelines/reproduce.py` checks, runs and renders it.

Each paper has a module in this folder with ``TABLES`` (T1, F2, ... -> Table) and ``mini(recipe, offline)``, which gives the
recipe of a row on the small encoder and the data at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
    """``PIPELINE/RECIPE``, for example ``sgbert/bert-base-sg``."""
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


def listed(title: str, columns: tuple[str, ...], lacks: str, numbers: Mapping[str, Numbers]) -> Table:
    """A table without results, of settings or data."""
    return Table(title, columns, tuple(Row(label, paper=paper, lacks=lacks) for label, paper in numbers.items()))


def average_only(average: float | None, columns: int = 7) -> Numbers:
    """Where the paper prints the average of so many columns alone."""
    return (*[None] * columns, average)
