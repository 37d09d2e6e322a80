"""Render a table: our numbers, the published numbers, their difference, and p values against a reference row."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from matplotlib.figure import Figure

from multicse.evaluation import statistics, tables
from multicse.evaluation.figures.basic import COLOURS, new_figure
from multicse.evaluation.task import EvaluationError
from multicse.reproduction.tables.table import Row, Table, Values

AVERAGE = "Avg"
LEVEL = 0.05
"""Significance level of corrected p values."""


def render(
    table: Table,
    columns: Sequence[str],
    rows: Sequence[Row],
    values: Values,
    style: str = "text",
    marks: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Render a table with up to four lines per row: ours (mean ± sd), the paper's, the difference, p of a t-test over seeds.

    Published numbers are shown for columns of the paper, or for columns that replace them. `style` is "text" or "markdown".
    `marks` are shown behind the labels of rows.
    """
    means = _with_average(values, columns, table.average)
    shown = [*columns, *([AVERAGE] if table.average and columns else [])]
    own = columns if len(columns) == len(table.columns) else table.columns
    published = [*own, *([AVERAGE] if table.average else [])]
    names = dict(zip(own, table.names, strict=True)) if table.names else {}
    if len(columns) != len(table.columns):
        names[AVERAGE] = f"{AVERAGE} of {len(columns)} (paper: of {len(table.columns)})"
    lines = [["", "", *(names.get(column, _short(column)) for column in shown)]]
    for row in rows:
        label = row.label + marks.get(row.label, "")
        ours = {column: means.get(row.label, {}).get(column, []) for column in shown}
        paper = dict(zip(published, row.paper, strict=True)) if row.paper else {}
        if any(ours.values()):
            lines.append([label, "ours", *(_mean(ours[column]) for column in shown)])
        if any(paper.get(column) is not None for column in shown):
            head = "" if any(ours.values()) else label
            sd = dict(zip(published, row.sd or [None] * len(published), strict=True))
            lines.append([head, "paper", *(_number(paper.get(column), sd.get(column)) for column in shown)])
            if any(ours.values()):
                same = [column != AVERAGE or len(columns) == len(table.columns) for column in shown]
                numbers = (paper.get(column) if alike else None for column, alike in zip(shown, same, strict=True))
                lines.append(["", "difference", *(map(_difference, (ours[column] for column in shown), numbers))])
        elif not any(ours.values()):
            lines.append([label, "", *("-" for _ in shown)])
        against = row.reference or table.reference
        reference = means.get(against or "", {})
        if row.label != against and any(len(ours[column]) > 1 for column in shown) and reference:
            lines.append(["", "p", *(_p(reference.get(column, []), ours[column]) for column in shown)])
    below = notes(rows)
    if any(line[1] == "p" for line in lines):
        against = table.reference or "the baseline of the same encoder"
        against += " (of the same variant)" if table.reference not in (None, *(row.label for row in rows)) else ""
        below.append(f"p: two-sided t-test of the differences by seed from {against}, not corrected for several rows")
    return ("\n\n" if style == "markdown" else "\n").join([*([_grid(lines, style)] if columns else []), *below])


def notes(rows: Sequence[Row]) -> list[str]:
    """Return a line per reason for which rows cannot be run, with the labels of these rows."""
    reasons = dict.fromkeys(row.lacks for row in rows if row.lacks)
    return [f"{', '.join(row.label for row in rows if row.lacks == reason)}: {reason}" for reason in reasons]


@dataclass(frozen=True)
class Verdict:
    """Result of testing a claim over seeds."""

    says: str
    test: statistics.Test | None
    """None for a single run or constant runs."""
    p: float
    """p value, corrected for the number of claims of the table (Holm)."""
    effect: float | None = None
    """The paper's own effect."""
    power: float | None = None
    """Probability that this number of seeds finds the paper's effect, with the deviation that was measured."""
    open: tuple[tuple[str, str], ...] = ()
    """Rows, and what about them leaves the claim open, whatever p is (`protocol.faults`)."""

    @property
    def word(self) -> str:
        """The verdict: open, confirmed, contradicted (a significant difference in the other direction), or inconclusive."""
        if self.open:
            return "open"
        if self.test is None or self.p >= LEVEL:
            return "inconclusive"
        return "confirmed" if self.test.difference > 0 else "contradicted"


def judged(
    table: Table,
    columns: Sequence[str],
    values: Values,
    faults: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[Verdict]:
    """Test the claims of a table, except those with a missing row, by a paired t-test over seeds of the mean over columns.

    A deterministic row is a constant against which the runs of the other row are tested. `faults` are
    those that the protocol finds, by label of the row.
    """
    means = _with_average(values, columns, len(columns) > 1)
    score = AVERAGE if len(columns) > 1 else columns[0]
    runs = {label: by_column[score] for label, by_column in means.items()}
    claims = [claim for claim in table.claims if runs.get(claim.row) and runs.get(claim.against)]
    found = [_test(runs[claim.against], runs[claim.row]) for claim in claims]
    known = iter(statistics.holm([one.p for one in found if one is not None]))
    out = []
    for claim, one in zip(claims, found, strict=True):
        said = tuple((row, fault) for row in (claim.row, claim.against) for fault in faults.get(row, ()))
        power = None if claim.effect is None else _power(claim.effect, runs[claim.against], runs[claim.row])
        out.append(Verdict(claim.says, one, 1.0 if one is None else next(known), claim.effect, power, said))
    return out


def verdicts(found: Sequence[Verdict], style: str = "text") -> str:
    """Render, as "text" or "markdown", one line per claim: difference of means, 95 % interval, p value, power, verdict."""
    lines = [["claim", "effect", "95 % interval", "p", "paper's effect", "power", "verdict"]]
    for one in found:
        numbers = ["-"] * 3
        if one.test is not None:
            numbers = [f"{one.test.difference:+.2f}", f"{one.test.low:+.2f} to {one.test.high:+.2f}", f"{one.p:.2g}"]
        paper = ["-" if one.effect is None else f"{one.effect:+.2f}", "-" if one.power is None else f"{one.power:.2f}"]
        lines.append([one.says, *numbers, *paper, one.word])
    count = sum(one.test is not None for one in found)
    test = f"two-sided t-test of the differences by seed, Holm over {count} claims, level {LEVEL}"
    note = f"effect: on the mean over columns; p: {test}; power: to find the paper's effect with as many seeds"
    reasons: dict[str, dict[str, None]] = {}
    for row, fault in (reason for one in found for reason in one.open):
        reasons.setdefault(fault, {})[row] = None
    every = {row for rows in reasons.values() for row in rows} if all(one.open for one in found) else {}
    said = [
        f"open: {fault} ({'all rows' if len(rows) == len(every) else '; '.join(rows)})" for fault, rows in reasons.items()
    ]
    return "\n\n".join([_grid(lines, style), note, *said])


def effects(found: Mapping[str, Sequence[Verdict]]) -> Figure:
    """Draw the difference of means of every claim that is not open, with its 95 % interval and the paper's own effect."""
    claims = [(table, one, one.test) for table, several in found.items() for one in several if one.test and not one.open]
    height = 1.0 + 0.5 * len(claims)
    figure = new_figure(9, height)
    figure.set_layout_engine("none")  # it would give a long label most of the width
    axes = figure.add_axes((0.45, 0.5 / height, 0.35, 1 - 1.0 / height))
    colours = {"confirmed": COLOURS[0], "inconclusive": "0.5", "contradicted": COLOURS[3]}
    for place, (_, one, test) in enumerate(claims):
        colour = colours[one.word]
        axes.plot([test.low, test.high], [place, place], color=colour)
        axes.plot(test.difference, place, "o", color=colour)
        if one.effect is not None:
            axes.plot(one.effect, place, "D", markerfacecolor="none", markeredgecolor="0.3")
        said = f"{test.difference:+.2f} ({test.low:+.2f} to {test.high:+.2f})\n{one.word}"
        axes.text(1.02, place, said, transform=axes.get_yaxis_transform(), va="center", color=colour, fontsize="small")
    for word in dict.fromkeys(one.word for _, one, _ in claims):
        axes.plot([], [], "o-", color=colours[word], label=word)
    axes.plot([], [], "D", markerfacecolor="none", markeredgecolor="0.3", label="the paper's effect")
    axes.axvline(0, color="0.3", linewidth=0.8)
    labels = ["\n".join(textwrap.wrap(f"{table}: {one.says}", 48)) for table, one, _ in claims]
    axes.set(yticks=range(len(claims)), yticklabels=labels, xlabel="points", ylim=(len(claims) - 0.5, -0.5))
    figure.legend(loc="upper center", ncols=4, frameon=False)
    return figure


def _test(against: Sequence[float], values: Sequence[float]) -> statistics.Test | None:
    try:
        return statistics.paired_t(against, values) if len(against) > 1 else statistics.one_sample_t(against[0], values)
    except EvaluationError:  # a single run, or constant runs
        return None


def _power(effect: float, against: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the power of a test with the deviation of these runs."""
    if len(values) != len(against) or len(values) < 2:
        return None
    deviation = float(np.std(np.asarray(values) - np.asarray(against), ddof=1))
    try:
        return statistics.power(effect, deviation, len(values))
    except EvaluationError:
        return None


def _grid(lines: Sequence[Sequence[str]], style: str) -> str:
    if style != "markdown":
        return tables.layout(lines)
    marked = [lines[0], ["---", *("---:" for _ in lines[0][1:])], *lines[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in marked)


def _with_average(values: Values, columns: Sequence[str], average: bool) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """Add the mean over columns of each run, of scores rounded to two decimals first, if `average`."""
    if not average:
        return values
    out = {}
    for label, by_column in values.items():
        runs = [by_column[column] for column in columns]
        mean = [float(np.mean([round(value, 2) for value in run])) for run in zip(*runs, strict=True)]
        out[label] = {**by_column, AVERAGE: mean}
    return out


def _short(column: str) -> str:
    task = column.partition("/")[0]
    if ":" not in column:
        return tables.LABELS.get(task, task) + column[len(task) :].replace("/", " ")
    kind, _, place = column.partition(":")
    place, _, metric = place.partition("#")
    return f"{kind} {place.partition('?')[0].rpartition('/')[2]} {metric}".strip()


def _mean(values: Sequence[float]) -> str:
    return tables.mean_sd(statistics.summary(values)) if values else "-"


def _number(value: float | None, sd: float | None = None) -> str:
    return "-" if value is None else f"{value:.2f}" + ("" if sd is None else f" ± {sd:.2f}")


def _difference(values: Sequence[float], paper: float | None) -> str:
    return "-" if paper is None or not values else f"{np.mean(values) - paper:+.2f}"


def _p(reference: Sequence[float], values: Sequence[float]) -> str:
    paired = len(reference) == len(values)  # the same seeds
    try:
        return f"{(statistics.paired_t if paired else statistics.student_t)(reference, values).p:.2g}"
    except EvaluationError:
        return "-"
