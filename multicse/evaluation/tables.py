"""Tables of results: one model in full, or several models in the papers' column order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy  # its subpackages are imported lazily

from multicse import plugins
from multicse.evaluation import statistics
from multicse.evaluation.report import SEVEN, TRANSFER, Report, Results, averages
from multicse.evaluation.statistics import Summary
from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks.sts import PairTask

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


SIDES = ("before", "baseline", "after", "whitened")
"""Sides of a run's table: the encoder before training, the same whitened, after training, the whitened export."""
SHOWN = (
    "spearman",
    "accuracy",
    "image_to_text_r1",
    "text_to_image_r1",
    "audio_to_text_r1",
    "text_to_audio_r1",
    "mean_r1",
    "mean_map10",
    "loss",
    "alignment",
    "uniformity",
)
"""Metrics of the tables of runs and model cards; lower is better for the last three. MLflow has all metrics."""
INTERVAL, LEVEL = "95 % interval", 0.05
"""Title of a column, and the p value from which on a change is not significant."""


@dataclass(frozen=True)
class Row:
    """A model in a comparison: its label, and the reports of its runs (one per seed)."""

    label: str
    runs: Sequence[Report]


class Column(NamedTuple):
    """A column of a comparison; `key` identifies it in `Marks`."""

    key: str
    label: str
    task: str
    metric: str

    def values(self, row: Row) -> list[float]:
        """Return the score of every run of a row; empty if a run has no score."""
        values = [_value(run.results, self.task, self.metric) for run in row.runs]
        return [] if None in values else [value for value in values if value is not None]


@dataclass(frozen=True)
class Marks:
    """p values by (label, column key) against the row `reference`, and the name of the test."""

    p: Mapping[tuple[str, str], float]
    reference: str
    test: str


def task_table(report: Report) -> str:
    """Format the scores of one model: one row per task, one column per metric, one block per set of metrics."""
    blocks: dict[tuple[str, ...], list[list[str]]] = {}
    for task, scores in report.with_averages().results.items():
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
    if len(row.runs) != 1:
        return None
    try:
        found = reference.runs[0].test(row.runs[0], column.task, column.metric, gold)
    except EvaluationError as error:
        raise EvaluationError(f"{reference.label} and {row.label} on {column.task}: {error}") from error
    return None if found is None else found.p


# ---------------------------------------------------------------------------------------------------------------- columns


def _arranged(rows: Sequence[Row], metric: str | None) -> tuple[list[Row], list[Column]]:
    """Return the rows with averages added as tasks, and the columns with at least one score, in the papers' order."""
    tasks = dict.fromkeys(task for row in rows for run in row.runs for task in run)
    rows = [replace(row, runs=[run.with_averages(metric) for run in row.runs]) for row in rows]
    every = [run.results for row in rows for run in row.runs]
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


def run_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Build the header and the rows of a run's table: its scores before and after training, and the change.

    Args:
        summary: Results by side (`SIDES`), and ``changes`` between before and after (`Report.changes`).
    """
    sides = {side: summary.get(side) or {} for side in SIDES if summary.get(side) or side in ("before", "after")}
    sides = {side: {**results, **averages(results)} for side, results in sides.items()}
    return side_by_side(sides, summary.get("changes") or {}, ("before", "after"))


def side_by_side(
    sides: Mapping[str, Results],
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    change: tuple[str, str] | None = None,
) -> list[list[str]]:
    """Build the header and the rows of a table with several sides, with the metrics `SHOWN`.

    Args:
        sides: Results by side; values are numbers or `Summary`s. The tasks of the last side come first.
        changes: Number of examples, p and interval by task; see `Report.changes`.
        change: Two sides; a further column shows the second minus the first.
    """
    numbers: dict[tuple[str, str], dict[str, Summary]] = {}
    for name, results in reversed(list(sides.items())):
        for task, scores in results.items():
            for metric, value in scores.items():
                if metric in SHOWN and value is not None:
                    summary = value if isinstance(value, Summary) else Summary(value, None, 1)
                    numbers.setdefault((task, metric), {})[name] = summary
    tested = {(task, found["metric"]): found for task, found in (changes or {}).items()}
    counted = any("n" in tested.get(of, {}) for of in numbers)
    rows = [["task", "metric", *(["n"] if counted else []), *sides, *(["change"] if change else [])]]
    rows[0] += [INTERVAL] if counted and change else []
    for of, found in numbers.items():
        test = tested.get(of, {})
        rows.append([*of, *([f"{test['n']:,}" if "n" in test else "-"] if counted else [])])
        rows[-1] += [mean_sd(found.get(name)) for name in sides]
        if change:
            first, second = (found.get(name) for name in change)
            rows[-1].append(f"{second.mean - first.mean:+.2f}" if first and second else "-")
            rows[-1] += [_interval(test)] if counted else []
    return rows


def _interval(test: Mapping[str, Any]) -> str:
    if "p" not in test:
        return "-"
    return f"{'' if test['p'] < LEVEL else 'n.s.  '}{test['low']:+.2f} to {test['high']:+.2f}"


def run_legend(head: Sequence[str]) -> list[str]:
    """Return what the columns of `run_rows` with this header mean, as sentences."""
    lines = ["baseline: the encoder before training, whitened on the training text."] if "baseline" in head else []
    tested = f"n: pairs or other examples. {INTERVAL}: of the change, over these examples; n.s.: not significant (p >= .05)."
    return [*lines, tested] if INTERVAL in head else lines


def worst_table(task: PairTask, cosines: np.ndarray, count: int) -> str:
    """Format the pairs with the largest difference between their ranks by cosine and by rating, worst first.

    The column ``off`` is this difference in percent of the set: at +60 the encoder ranks the pair above 60 % more of the
    other pairs than the ratings do, so it overestimates the similarity. Equal values share a rank.

    Args:
        task: Rated pairs.
        cosines: Cosine of each pair, (N,).
        count: Number of pairs.
    """
    off = 100 * (scipy.stats.rankdata(cosines) - scipy.stats.rankdata(task.gold)) / len(cosines)
    rows = [["off", "rating", "cosine", ""]]
    for place in np.argsort(-np.abs(off), kind="stable")[:count]:
        numbers = f"{off[place]:+.0f}", f"{task.gold[place]:.2f}", f"{cosines[place]:.3f}"
        rows += [[*numbers, task.pairs.first[place]], ["", "", "", task.pairs.second[place]]]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*(c.rjust(w) for c, w in zip(row, widths, strict=False)), row[3]]).rstrip() for row in rows]
    return "\n".join([f"{task.name}: pairs that the encoder ranks differently from the {task.gold_is}", *lines])


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
