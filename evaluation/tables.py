"""Results as tables: one model in full, or models side by side as text, Markdown or LaTeX in the papers' column order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from multicse.evaluation import statistics
from multicse.evaluation.statistics import Summary
from multicse.evaluation.task import EvaluationError

Results = Mapping[str, Mapping[str, Any]]  # task -> metric -> value

SEVEN = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb-test", "sickr")
TRANSFER = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")
# Columns of the seven: SimCSE's (NonLing-CSE, GCLSR, ...) and SG-BERT's.
ORDERS = {"sts12-first": SEVEN, "stsb-first": (*SEVEN[5:], *SEVEN[:5])}
AVERAGE = "average"
TRANSFER_AVERAGE = "transfer-average"
LABELS = {
    **{name: name.upper() for name in (*SEVEN[:5], "mr", "cr", "subj", "mpqa", "trec", "mrpc")},
    **{"stsb-train": "STS-B train", "stsb-dev": "STS-B dev", "stsb-test": "STS-B"},
    **{"sickr-train": "SICK-R train", "sickr-dev": "SICK-R dev", "sickr": "SICK-R"},
    **{"sst2": "SST", AVERAGE: "Avg", TRANSFER_AVERAGE: "Avg"},
}
HEADLINES = (("spearman",), ("accuracy",), ("alignment", "uniformity"))  # what stands for a task, the first that it has
REGRESSION = "-regression"  # SentEval's trained mode, whose headline is Pearson; never a column of the cosine's Spearman
LOWER = {"alignment", "intra_class_distance", "distance_ratio", "mean_cosine", "top3_variance", "mse", "loss"}
NEITHER = {"modality_gap", "inter_class_distance"}  # no best; of LOWER and all uniformities the lowest, else the highest


@dataclass(frozen=True)
class Row:
    """A model in a comparison: its label, and the results of its runs (one a seed).

    `examples` is what a test on a single run needs, by task: the cosine of every pair (N,), or for a classification
    which examples were right (N,), booleans.
    """

    label: str
    runs: Sequence[Results]
    examples: Mapping[str, np.ndarray] = field(default_factory=dict)


class Column(NamedTuple):
    """One column: `key` names it in marks, an average is over `tasks`, all others have one."""

    key: str
    label: str
    tasks: tuple[str, ...]
    metric: str

    def values(self, row: Row) -> list[float]:
        """The column's number of every run; none if a run lacks it."""
        one = len(self.tasks) == 1
        values = [_value(r, self.tasks[0], self.metric) if one else average(r, self.tasks, self.metric) for r in row.runs]
        return [] if None in values else [value for value in values if value is not None]

    def summary(self, row: Row) -> Summary | None:
        """Mean and standard deviation over the runs."""
        values = self.values(row)
        return statistics.summary(values) if values else None


@dataclass(frozen=True)
class Marks:
    """p values by (label, column key) against the row `reference`, and the test they are from."""

    p: Mapping[tuple[str, str], float]
    reference: str
    test: str


def average(results: Results, tasks: Sequence[str] = SEVEN, metric: str = "spearman") -> float | None:
    """Mean of the seven STS numbers, each rounded to 2 decimals first as the papers' script does; None if one lacks."""
    values = [_value(results, task, metric) for task in tasks]
    return None if None in values else sum(round(value, 2) for value in values if value is not None) / len(values)


def averages(results: Results) -> dict[str, dict[str, float]]:
    """The papers' averages over the tasks of a group that are there, if they are several, as a task of its own:
    ``average of 7`` -> spearman of the STS sets, ``transfer average of 7`` -> accuracy. Means as those of `average`."""
    found = {}
    for title, group, metric in (("average", SEVEN, "spearman"), ("transfer average", TRANSFER, "accuracy")):
        tasks = [task for task in group if _value(results, task, metric) is not None]
        mean = average(results, tasks, metric) if len(tasks) > 1 else None
        if mean is not None:
            found[f"{title} of {len(tasks)}"] = {metric: mean}
    return found


def task_table(results: Results) -> str:
    """One row a task, one column a metric: everything about one model. Tasks with other metrics are in a block below."""
    blocks: dict[tuple[str, ...], list[list[str]]] = {}
    for task, scores in results.items():
        metrics = [m for m, value in scores.items() if isinstance(value, float) and m != "threshold"]
        metrics += [m for m in ("pairs", "skipped") if m in scores]
        blocks.setdefault(tuple(metrics), []).append([task, *(_cell(scores[m], m) for m in metrics)])
    return "\n\n".join(layout([["task", *metrics], *rows]) for metrics, rows in blocks.items())


def comparison(
    rows: Sequence[Row],
    order: str = "sts12-first",
    metric: str | None = None,
    marks: Marks | None = None,
    style: str = "text",
) -> str:
    """Models side by side, one row each: mean ± sample sd where a model is several runs, the best in bold.

    order: of the seven STS columns, "sts12-first" or "stsb-first"; transfer and whatever else there is follow. metric: one
    for all tasks (those without it are left out); none: each task's headline. style: "text" (no bold), "markdown" or "latex"
    (lines ``a & b \\\\`` of a tabular, needs no package). marks: from `significance`; ``*`` p < .05, ``**`` p < .01.

    An average is that of the already rounded numbers, and only where all of them are there. "-": a run lacks the number.
    Raises EvaluationError for no rows, labels that repeat, and a metric that nothing has.
    """
    columns = _columns(rows, order, metric)
    head = [metric or "", *(column.label for column in columns)]
    cells = [[mean_sd(column.summary(row), _digits(column.metric)) for column in columns] for row in rows]
    stars = [[_stars(marks, row.label, column.key) for column in columns] for row in rows]
    legend = _legend(rows, marks)
    if style == "text":
        widths = [max(map(len, column)) for column in zip(*stars, strict=True)]  # digits stay below one another
        body = [
            [row.label, *(c + s.ljust(w) for c, s, w in zip(*line, widths, strict=True))]
            for row, line in zip(rows, zip(cells, stars, strict=True), strict=True)
        ]
        return "\n".join([layout([head, *body]), *legend])
    best = [_best(column, columns[i].metric) for i, column in enumerate(zip(*cells, strict=True))]
    lines = [[_escape(text, style) for text in head]]
    for i, row in enumerate(rows):
        dressed = [_dress(c, s, i in b, style) for c, s, b in zip(cells[i], stars[i], best, strict=True)]
        lines.append([_escape(row.label, style), *dressed])
    if style == "latex":
        return "\n".join([*(" & ".join(line) + r" \\" for line in lines), *(f"% {line}" for line in legend)])
    lines.insert(1, ["---", *("---:" for _ in columns)])
    table = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([*table, *("\n" + _escape(line, style) for line in legend)])


# ----------------------------------------------------------------------------------------------------------- significance


def significance(
    rows: Sequence[Row],
    gold: Mapping[str, np.ndarray] | None = None,
    order: str = "sts12-first",
    metric: str | None = None,
    samples: int = 10_000,
) -> Marks:
    """Every row against the first: pooled t test over runs if both have several, paired bootstrap if both have one.

    The bootstrap is over the `examples` of the two rows; cosines need `gold` (task -> ratings (N,)). Several models
    against one reference are several chances to win by luck: within a column, p is adjusted after Holm. A cell without
    what its test needs, or whose runs do not vary, gets no p; neither does the average of single runs.
    """
    columns = _columns(rows, order, metric)
    reference, others = rows[0], rows[1:]
    seeds = len(reference.runs) > 1
    found: dict[tuple[str, str], float] = {}
    for column in columns:
        p = {}
        for row in others:
            value = _seeds_p(reference, row, column) if seeds else _examples_p(reference, row, column, gold or {}, samples)
            if value is not None:
                p[row.label, column.key] = value
        found |= dict(zip(p, statistics.holm(list(p.values())), strict=True)) if p else {}
    test = "two-sided Student t over runs" if seeds else f"paired bootstrap over the test set ({samples:,} samples)"
    return Marks(found, reference.label, test + (", Holm within a column" if len(others) > 1 else ""))


def _seeds_p(reference: Row, row: Row, column: Column) -> float | None:
    first, second = column.values(reference), column.values(row)
    if not first or len(second) < 2:
        return None
    try:
        return statistics.student_t(first, second).p
    except EvaluationError:  # runs that do not vary
        return None


def _examples_p(reference: Row, row: Row, column: Column, gold: Mapping[str, np.ndarray], samples: int) -> float | None:
    first, second = reference.examples.get(column.tasks[0]), row.examples.get(column.tasks[0])
    if len(row.runs) != 1 or len(column.tasks) > 1 or first is None or second is None:
        return None
    try:
        if column.metric == "accuracy":
            return statistics.paired_bootstrap_accuracy(first, second, samples).p
        if column.metric in ("spearman", "pearson") and column.key in gold:
            return statistics.paired_bootstrap(first, second, gold[column.key], column.metric, samples).p
    except EvaluationError as error:
        raise EvaluationError(f"{reference.label} and {row.label} on {column.key}: {error}") from error
    return None


# ---------------------------------------------------------------------------------------------------------------- columns


def _columns(rows: Sequence[Row], order: str, metric: str | None) -> list[Column]:
    """The columns that at least one run fills, in the papers' order."""
    labels = [row.label for row in rows]
    if not rows or not all(row.runs for row in rows):
        raise EvaluationError("a comparison needs at least one row, and every row at least one run")
    if len(set(labels)) < len(labels):
        raise EvaluationError(f"labels must differ, or marks are ambiguous: {', '.join(labels)}")
    every = [results for row in rows for results in row.runs]
    tasks = list(dict.fromkeys(task for results in every for task in results))
    columns = []
    for group, key, headline in ((ORDERS[order], AVERAGE, "spearman"), (TRANSFER, TRANSFER_AVERAGE, "accuracy")):
        columns += [column for task in group if task in tasks for column in _of_task(task, every, metric)]
        if any(average(results, group, metric or headline) is not None for results in every):
            columns.append(Column(key, LABELS[key], group, metric or headline))
    others = [task for task in tasks if task not in (*SEVEN, *TRANSFER)]
    columns += [column for task in others for column in _of_task(task, every, metric)]
    if not columns:
        raise EvaluationError(f"no task has the metric {metric!r}" if metric else "the results hold no numbers to compare")
    return columns


def _of_task(task: str, every: Sequence[Results], metric: str | None) -> Iterator[Column]:
    found = list(
        dict.fromkeys(m for results in every for m in results.get(task, {}) if _value(results, task, m) is not None)
    )
    metrics = [m for m in found if m != "threshold"]
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
        yield Column(task if alone else f"{task}/{name}", label if plain else f"{label} {name}", (task,), name)


def _value(results: Results, task: str, metric: str) -> float | None:
    value = results.get(task, {}).get(metric)
    return value if isinstance(value, float) else None


# ------------------------------------------------------------------------------------------------------------------ cells


def before_after(
    sides: Mapping[str, Results], shown: Callable[[str], bool], change: tuple[str, str] | None = None
) -> list[list[str]]:
    """A head, and a row for each metric of each task that is shown: numbers or `Summary`s of every side, "-" for none, and
    the change from the one of two sides to the other. The last side's tasks come first."""
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
    """Columns aligned, the first to the left, numbers to the right, a rule under the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cell(value: float | int, metric: str) -> str:
    return f"{value:.{_digits(metric)}f}" if isinstance(value, float) else f"{value:,}"


def _digits(metric: str) -> int:
    """Points have two decimals; distances are of the size of 1."""
    return 3 if metric in LOWER | NEITHER | {"dimension_std"} or "uniformity" in metric else 2


def mean_sd(value: Summary | None, digits: int = 2) -> str:
    """``76.96 ± 0.38``; without the second for one value, "-" for none."""
    if value is None:
        return "-"
    return f"{value.mean:.{digits}f}" + ("" if value.sd is None else f" ± {value.sd:.{digits}f}")


def _best(cells: Sequence[str], metric: str) -> set[int]:
    """Rows with the best mean as it is printed; none where there is nothing to be better than."""
    means = {i: float(cell.split()[0]) for i, cell in enumerate(cells) if cell != "-"}
    if len(means) < 2 or metric in NEITHER:
        return set()
    top = min(means.values()) if metric in LOWER or "uniformity" in metric else max(means.values())
    return {i for i, mean in means.items() if mean == top}


def _stars(marks: Marks | None, label: str, key: str) -> str:
    p = marks.p.get((label, key), 1.0) if marks else 1.0
    return "**" if p < 0.01 else "*" if p < 0.05 else ""


def _legend(rows: Sequence[Row], marks: Marks | None) -> list[str]:
    lines = []
    if any(len(row.runs) > 1 for row in rows):
        lines.append(f"± sample standard deviation over runs ({', '.join(f'{row.label}: {len(row.runs)}' for row in rows)})")
    if marks and marks.p:
        lines.append(f"* p < .05, ** p < .01 for a difference from {marks.reference}: {marks.test}")
    elif marks:
        lines.append(
            "no marks: a test needs several runs of both (one label), or single runs with their .npz beside the report"
        )
    return lines


def _dress(cell: str, stars: str, best: bool, style: str) -> str:
    mean, *sd = cell.split(" ± ")
    bold = (f"**{mean}**" if style == "markdown" else rf"\textbf{{{mean}}}") if best else mean
    mark = f"$^{{{stars}}}$" if stars and style == "latex" else stars.replace("*", r"\*")
    plus = r" $\pm$ " if style == "latex" else " ± "
    return plus.join([bold, *sd]) + mark


_NAMES = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "|": "bar", "<": "less", ">": "greater"}
_LATEX = {c: rf"\text{name}{{}}" for c, name in _NAMES.items()} | {c: "\\" + c for c in "&%$#_{}"}


def _escape(text: str, style: str) -> str:
    text = " ".join(text.split())
    if style == "latex":
        return "".join(_LATEX.get(c, c) for c in text)
    return "".join("\\" + c if c in r"\|*_`<" else c for c in text)
