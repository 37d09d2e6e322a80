"""Results as text tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.registry import SEVEN

Results = Mapping[str, Mapping[str, Any]]  # task -> metric -> value


def average(results: Results) -> float | None:
    """Mean of the seven STS numbers, each rounded to 2 decimals first as the papers' script does; None if one lacks."""
    if any(name not in results for name in SEVEN):
        return None
    return sum(round(results[name]["spearman"], 2) for name in SEVEN) / len(SEVEN)


def task_table(results: Results) -> str:
    """One row a task, one column a metric: everything about one model."""
    metrics = list(
        dict.fromkeys(m for r in results.values() for m, v in r.items() if isinstance(v, float) and m != "threshold")
    )
    counts = [m for m in ("pairs", "skipped") if any(m in r for r in results.values())]
    rows = [[task, *(_cell(r.get(m)) for m in metrics + counts)] for task, r in results.items()]
    return layout([["task", *metrics, *counts], *rows])


def comparison_table(models: Mapping[str, Results], metric: str = "spearman") -> str:
    """One row a model, one column a task, one metric: ``{"before": results, "after": results}`` side by side.

    Tasks in the order of the papers' tables, then the others; their average when all seven are there.
    """
    tasks = list(dict.fromkeys(t for results in models.values() for t, r in results.items() if metric in r))
    tasks = [t for t in SEVEN if t in tasks] + [t for t in tasks if t not in SEVEN]
    with_average = all(average(results) is not None for results in models.values())
    rows = [[f"{metric} x 100", *tasks, *(["average"] if with_average else [])]]
    for model, results in models.items():
        cells = [_cell(results.get(t, {}).get(metric)) for t in tasks]
        rows.append([model, *cells, *([_cell(average(results))] if with_average else [])])
    return layout(rows)


def layout(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first to the left, numbers to the right, a rule under the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
