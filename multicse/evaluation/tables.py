"""Tables of results: one model in full, or several models in the papers' column order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from multicse import plugins
from multicse.evaluation import statistics
from multicse.evaluation.statistics import Summary
from multicse.evaluation.task import EvaluationError

Results = Mapping[str, Mapping[str, Any]]  # task -> metric -> value

SEVEN = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb-test", "sickr")
TRANSFER = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")
AVERAGE, TRANSFER_AVERAGE = "average of 7", "transfer average of 7"
ORDER = (*SEVEN, AVERAGE, *TRANSFER, TRANSFER_AVERAGE)
LABELS = {
    **{name: name.upper() for name in (*SEVEN[:5], "mr", "cr", "subj", "mpqa", "trec", "mrpc")},
    **{"stsb-train": "STS-B train", "stsb-dev": "STS-B dev", "stsb-test": "STS-B"},
    **{"sickr-train": "SICK-R train", "sickr-dev": "SICK-R dev", "sickr": "SICK-R"},
    **{"sst2": "SST", AVERAGE: "Avg", TRANSFER_AVERAGE: "Avg"},
}
HEADLINES = (("spearman",), ("accuracy",), ("alignment", "uniformity"))  # main metrics of a task: the first that it has
REGRESSION = "-regression"  # SentEval's trained mode, with Pearson as its main metric
LOWER = {"alignment", "intra_class_distance", "distance_ratio", "mean_cosine", "top3_variance", "mse", "loss"}
NEITHER = {"modality_gap", "inter_class_distance"}  # have no best; lower is better for LOWER and every uniformity


@dataclass(frozen=True)
class Row:
    """A model in a comparison: its label, and the results of its runs (one per seed)."""

    label: str
    runs: Sequence[Results]
    examples: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Values (N,) by task for a paired test of single runs; see `Score`."""


class Column(NamedTuple):
    """A column of a comparison; `key` identifies it in `Marks`."""

    key: str
    label: str
    task: str
    metric: str

    def values(self, row: Row) -> list[float]:
        """Return the score of every run of a row; empty if a run has no score."""
        values = [_value(run, self.task, self.metric) for run in row.runs]
        return [] if None in values else [value for value in values if value is not None]


@dataclass(frozen=True)
class Marks:
    """p values by (label, column key) against the row `reference`, and the name of the test."""

    p: Mapping[tuple[str, str], float]
    reference: str
    test: str


def averages(results: Results, metric: str | None = None) -> dict[str, dict[str, float]]:
    """Average the STS tasks and the transfer tasks, as the papers do: each score is rounded to 2 decimals first.

    Args:
        results: Results of one run.
        metric: Metric to average. Default: Spearman for STS, accuracy for transfer.

    Returns:
        Averages as tasks, such as ``average of 7``, for groups with at least two results.
    """
    found = {}
    for title, group, headline in (("average", SEVEN, "spearman"), ("transfer average", TRANSFER, "accuracy")):
        values = [_value(results, task, metric or headline) for task in group]
        rounded = [round(value, 2) for value in values if value is not None]
        if len(rounded) > 1:
            found[f"{title} of {len(rounded)}"] = {metric or headline: sum(rounded) / len(rounded)}
    return found


def task_table(results: Results) -> str:
    """Format the results of one model: one row per task, one column per metric, one block per set of metrics."""
    blocks: dict[tuple[str, ...], list[list[str]]] = {}
    for task, scores in results.items():
        metrics = [m for m, value in scores.items() if isinstance(value, float) and m != "threshold"]
        metrics += [m for m in ("pairs", "skipped") if m in scores]
        cells = (f"{scores[m]:.{_digits(m)}f}" if isinstance(scores[m], float) else f"{scores[m]:,}" for m in metrics)
        blocks.setdefault(tuple(metrics), []).append([task, *cells])
    return "\n\n".join(layout([["task", *metrics], *rows]) for metrics, rows in blocks.items())


class Style(NamedTuple):
    """Form of a comparison of models; plugins register others than text."""

    column: Callable[[Sequence[str], Sequence[str], set[int]], list[str]]
    """Function of the scores of a column, their stars and the rows with the best score that returns the cells."""
    table: Callable[[Sequence[str], Sequence[Sequence[str]], Sequence[str]], str]
    """Function of the header, the rows and the lines below the table."""


def _text_column(scores: Sequence[str], stars: Sequence[str], best: set[int]) -> list[str]:
    width = max(map(len, stars))  # aligns the digits
    return [score + star.ljust(width) for score, star in zip(scores, stars, strict=True)]


def _text_table(head: Sequence[str], body: Sequence[Sequence[str]], legend: Sequence[str]) -> str:
    return "\n".join([layout([head, *body]), *legend])


plugins.add("style", "text", Style(_text_column, _text_table))


def comparison(rows: Sequence[Row], metric: str | None = None, marks: Marks | None = None, style: str = "text") -> str:
    """Format several models, one row each, with mean ± sample standard deviation for several runs.

    Args:
        rows: The models.
        metric: Metric to show for every task that has it. If None, the main metric of each task.
        marks: p values from `significance`; ``*`` p < .05, ``**`` p < .01.
        style: Name of a `Style`: text, or of a plugin.
    """
    form: Style = plugins.get("style", style)
    rows, columns = _arranged(rows, metric)
    by_column = [_cells(rows, column, marks, form) for column in columns]
    body = [[row.label, *cells] for row, *cells in zip(rows, *by_column, strict=True)]
    return form.table([metric or "", *(column.label for column in columns)], body, _legend(rows, marks))


def _cells(rows: Sequence[Row], column: Column, marks: Marks | None, form: Style) -> list[str]:
    """Format a column with its stars."""
    cells = [mean_sd(statistics.summary(x) if (x := column.values(row)) else None, _digits(column.metric)) for row in rows]
    p = [marks.p.get((row.label, column.key), 1.0) if marks else 1.0 for row in rows]
    stars = ["**" if one < 0.01 else "*" if one < 0.05 else "" for one in p]
    return form.column(cells, stars, _best(cells, column.metric))


# ----------------------------------------------------------------------------------------------------------- significance


def significance(rows: Sequence[Row], gold: Mapping[str, np.ndarray] | None = None, metric: str | None = None) -> Marks:
    """Test every row against the first.

    If both rows have several runs, the test is a pooled t-test over runs. If both have one, it is a paired bootstrap of the
    cosines, or a sign test of the right answers of a classifier. Within a column, p values of several models are adjusted by
    Holm's method. Cells without the values that a test needs get no p.

    Args:
        rows: The models; the first is the reference.
        gold: Human ratings (N,) by task, needed for the bootstrap.
        metric: Metric to test. If None, the main metric of each task.
    """
    rows, columns = _arranged(rows, metric)
    reference, others = rows[0], rows[1:]
    seeds = len(reference.runs) > 1
    found: dict[tuple[str, str], float] = {}
    for column in columns:
        p = {}
        for row in others:
            value = _seeds_p(reference, row, column) if seeds else _examples_p(reference, row, column, gold or {})
            if value is not None:
                p[row.label, column.key] = value
        found |= dict(zip(p, statistics.holm(list(p.values())), strict=True)) if p else {}
    test = "two-sided Student t over runs" if seeds else "paired bootstrap over the test set, sign test of accuracies"
    return Marks(found, reference.label, test + (", Holm within a column" if len(others) > 1 else ""))


def _seeds_p(reference: Row, row: Row, column: Column) -> float | None:
    first, second = column.values(reference), column.values(row)
    if not first or len(second) < 2:
        return None
    try:
        return statistics.student_t(first, second).p
    except EvaluationError:  # runs that do not vary
        return None


def _examples_p(reference: Row, row: Row, column: Column, gold: Mapping[str, np.ndarray]) -> float | None:
    first, second = reference.examples.get(column.task), row.examples.get(column.task)
    if len(row.runs) != 1 or first is None or second is None:
        return None
    try:
        if column.metric == "accuracy":
            return statistics.sign_test(first, second)
        if column.metric in ("spearman", "pearson") and column.task in gold:
            return statistics.paired_bootstrap(first, second, gold[column.task], column.metric)
    except EvaluationError as error:
        raise EvaluationError(f"{reference.label} and {row.label} on {column.task}: {error}") from error
    return None


# ---------------------------------------------------------------------------------------------------------------- columns


def _arranged(rows: Sequence[Row], metric: str | None) -> tuple[list[Row], list[Column]]:
    """Return the rows with averages added as tasks, and the columns with at least one score, in the papers' order."""
    tasks = dict.fromkeys(task for row in rows for run in row.runs for task in run)
    rows = [replace(row, runs=[{**run, **averages(run, metric)} for run in row.runs]) for row in rows]
    every = [run for row in rows for run in row.runs]
    ordered = [*ORDER, *(task for task in tasks if task not in ORDER)]
    columns = [column for task in ordered for column in _of_task(task, every, metric)]
    if not columns:
        raise EvaluationError(f"no task has the metric {metric!r}" if metric else "the results contain no scores to compare")
    return rows, columns


def _of_task(task: str, every: Sequence[Results], metric: str | None) -> Iterator[Column]:
    scored = (m for results in every for m in results.get(task, {}) if _value(results, task, m) is not None)
    metrics = [m for m in dict.fromkeys(scored) if m != "threshold"]
    if metric is not None:
        chosen = [m for m in metrics if m == metric]
    else:
        headlines = (("pearson",),) if task.endswith(REGRESSION) else HEADLINES
        chosen = next(([m for m in names if m in metrics] for names in headlines if set(names) <= set(metrics)), metrics)
    base = task.removesuffix("-geometry")
    label = LABELS.get(base, base)
    for name in chosen:
        alone = len(chosen) == 1
        plain = alone and name in (metric, "spearman", "accuracy")
        yield Column(task if alone else f"{task}/{name}", label if plain else f"{label} {name}", task, name)


def _value(results: Results, task: str, metric: str) -> float | None:
    value = results.get(task, {}).get(metric)
    return value if isinstance(value, float) else None


# ------------------------------------------------------------------------------------------------------------------ cells


def before_after(
    sides: Mapping[str, Results], shown: Callable[[str], bool], change: tuple[str, str] | None = None
) -> list[list[str]]:
    """Build the header and the rows of a table with several sides, such as before and after training.

    Args:
        sides: Results by side; values are numbers or `Summary`s. The tasks of the last side come first.
        shown: Whether a metric is shown.
        change: Two sides; a further column shows the second minus the first.
    """
    numbers: dict[tuple[str, str], dict[str, Summary]] = {}
    for name, results in reversed(list(sides.items())):
        for task, scores in results.items():
            for metric, value in scores.items():
                if shown(metric) and value is not None:
                    summary = value if isinstance(value, Summary) else Summary(value, None, 1)
                    numbers.setdefault((task, metric), {})[name] = summary
    rows = [["task", "metric", *sides, *(["change"] if change else [])]]
    for of, found in numbers.items():
        rows.append([*of, *(mean_sd(found.get(name)) for name in sides)])
        if change:
            first, second = (found.get(name) for name in change)
            rows[-1].append(f"{second.mean - first.mean:+.2f}" if first and second else "-")
    return rows


def layout(rows: Sequence[Sequence[str]]) -> str:
    """Align columns, the first one left and the others right, with a rule below the header."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _digits(metric: str) -> int:
    """Return the number of decimals: two for points, three for distances, which are about 1."""
    return 3 if metric in LOWER | NEITHER | {"dimension_std"} or "uniformity" in metric else 2


def mean_sd(value: Summary | None, digits: int = 2) -> str:
    """Format a summary as ``76.96 ± 0.38``, ``76.96`` for one value, "-" for None."""
    if value is None:
        return "-"
    return f"{value.mean:.{digits}f}" + ("" if value.sd is None else f" ± {value.sd:.{digits}f}")


def _best(cells: Sequence[str], metric: str) -> set[int]:
    """Return the rows with the best printed mean; empty for fewer than two scores."""
    means = {i: float(cell.split()[0]) for i, cell in enumerate(cells) if cell != "-"}
    if len(means) < 2 or metric in NEITHER:
        return set()
    top = min(means.values()) if metric in LOWER or "uniformity" in metric else max(means.values())
    return {i for i, mean in means.items() if mean == top}


def _legend(rows: Sequence[Row], marks: Marks | None) -> list[str]:
    lines = []
    if any(len(row.runs) > 1 for row in rows):
        lines.append(f"± sample standard deviation over runs ({', '.join(f'{row.label}: {len(row.runs)}' for row in rows)})")
    if marks and marks.p:
        lines.append(f"* p < .05, ** p < .01 for a difference from {marks.reference}: {marks.test}")
    elif marks:
        lines.append("no p values: a test needs several runs of both models, or single runs with an .npz next to the report")
    return lines
