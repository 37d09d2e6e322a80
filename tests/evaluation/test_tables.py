"""Tables in the papers' order, their averages, bold and marks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy import stats

from multicse.evaluation.report import SEVEN, TRANSFER, Report, Results, averages
from multicse.evaluation.statistics import paired_bootstrap, sign_test, student_t
from multicse.evaluation.tables import (
    AVERAGE,
    Marks,
    Row,
    comparison,
    run_legend,
    run_rows,
    significance,
    task_table,
    worst_table,
)
from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks.sts import Pairs, PairTask


def row(label: str, *runs: Results) -> Row:
    return Row(label, [Report.of(run) for run in runs])


def test_missing_results_are_dashes_and_average_needs_all_seven() -> None:
    full = {name: {"spearman": 70 + i + 0.005 * i} for i, name in enumerate(SEVEN)}
    assert averages(full)[AVERAGE]["spearman"] == pytest.approx(sum(round(v["spearman"], 2) for v in full.values()) / 7)
    assert averages({"sts12": {"spearman": 1.0}}) == {}
    lines = comparison([row("a", full), row("b", {"sts12": {"spearman": 1.0}})]).splitlines()
    assert lines[0].endswith("Avg") and lines[3].split()[-1] == "-"


def test_task_table_shows_every_metric() -> None:
    results: dict[str, dict[str, Any]] = {
        "sts12": {"spearman": 72.366, "pearson": 81.0, "pairs": 3108, "skipped": 0, "subsets": {}},
        "stsb-dev-geometry": {"alignment": 0.25, "uniformity": -2.5, "positives": 9, "threshold": 4.0},
    }
    lines = task_table(Report.of(results)).splitlines()
    assert lines[0].split() == ["task", "spearman", "pearson", "pairs", "skipped"]
    assert lines[2].split() == ["sts12", "72.37", "81.00", "3,108", "0"]
    assert lines[4].split() == ["task", "alignment", "uniformity"]
    assert lines[6].split() == ["stsb-dev-geometry", "0.250", "-2.500"]  # distances, not points


# ------------------------------------------------------------------------------------------------------------ comparison


def results(values: str, order: tuple[str, ...] = SEVEN, metric: str = "spearman") -> dict[str, dict[str, Any]]:
    return {task: {metric: float(value)} for task, value in zip(order, values.split(), strict=True)}


def test_columns_follow_the_papers() -> None:
    everything: Results = {
        "stsb-dev-geometry": {"uniformity": -2.0, "alignment": 0.2, "threshold": 4.0, "positives": 3},
        **results("1 2 3 4 5 6 7", TRANSFER, "accuracy"),
        "own": {"recall_1": 3.0, "recall_5": 4.0},
        **results("1 2 3 4 5 6 7"),
    }
    head = comparison([row("a", everything)], style="latex").splitlines()[1]
    seven = "STS12 & STS13 & STS14 & STS15 & STS16 & STS-B & SICK-R & Avg"
    transfer = "MR & CR & SUBJ & MPQA & SST & TREC & MRPC & Avg"
    others = r"STS-B dev alignment & STS-B dev uniformity & own recall\_1 & own recall\_5"
    assert head == rf" & {seven} & {transfer} & {others} \\"
    one = comparison([row("a", everything)], metric="spearman", style="markdown").splitlines()[0]
    assert one == "| spearman | STS12 | STS13 | STS14 | STS15 | STS16 | STS-B | SICK-R | Avg |"


def test_spearman_is_the_headline_and_stars_are_levels() -> None:
    rows = [row(label, {"own": {"pearson": 1.0, "spearman": 2.0}}) for label in "abcd"]
    marks = Marks({("b", "own"): 0.009, ("c", "own"): 0.049, ("d", "own"): 0.05}, "a", "test")
    assert [line.split()[-1] for line in comparison(rows, marks=marks).splitlines()[2:6]] == [
        "2.00",
        "2.00**",
        "2.00*",
        "2.00",
    ]


def test_bold_is_the_best_as_printed() -> None:
    first: Results = {
        "sts12": {"spearman": 70.001},
        "lee": {"spearman": 1.0},
        "lee-geometry": {"alignment": 0.1, "uniformity": -1.0},
    }
    second: Results = {"sts12": {"spearman": 70.004}, "lee-geometry": {"alignment": 0.2, "uniformity": -2.0}}
    rows = [row("a_b|c", first), row("50% & more", second)]
    markdown = comparison(rows, style="markdown").splitlines()
    assert markdown[2:] == [
        r"| a\_b\|c | **70.00** | 1.00 | **0.100** | -1.000 |",
        "| 50% & more | **70.00** | - | 0.200 | **-2.000** |",
    ]
    latex = comparison(rows, style="latex").splitlines()
    assert latex[2] == r"a\_b|c & \textbf{70.00} & 1.00 & \textbf{0.100} & -1.000 \\"
    assert latex[3] == r"50\% \& more & \textbf{70.00} & - & 0.200 & \textbf{-2.000} \\"


# ----------------------------------------------------------------------------------------------------------- significance


def seeds(means: list[float], lee: float = 50.0) -> list[Results]:
    return [{task: {"spearman": mean} for task in SEVEN} | {"lee": {"spearman": lee}} for mean in means]


BASE, BETTER, ALIKE = [75.0, 75.4, 74.9], [77.9, 78.0, 78.3], [75.1, 75.6, 74.9]


def test_seeds_are_mean_and_sd_with_marks_against_the_first() -> None:
    rows = [row("base", *seeds(BASE)), row("better", *seeds(BETTER)), row("alike", *seeds(ALIKE))]
    marks = significance(rows)
    assert marks.reference == "base" and "Student t over runs" in marks.test and "Holm" in marks.test
    low, high = student_t(BASE, BETTER).p, student_t(BASE, ALIKE).p
    assert marks.p["better", "sts12"] == pytest.approx(2 * low)  # Holm: the smaller of two is doubled
    assert marks.p["alike", AVERAGE] == pytest.approx(high)
    assert ("better", "lee") not in marks.p  # nothing varies
    text = comparison(rows, marks=marks).splitlines()
    assert text[3].count("78.07 ± 0.21**") == 8 and text[4].count("*") == 0
    assert text[2].index("75.10 ±") == text[3].index("78.07 ±") == text[4].index("75.20 ±")
    assert text[5] == "± sample standard deviation over runs (base: 3, better: 3, alike: 3)"
    assert text[6].startswith("* p < .05, ** p < .01 for a difference from base: two-sided Student t over runs")
    latex = comparison(rows, marks=marks, style="latex")
    assert r"\textbf{78.07} $\pm$ 0.21$^{**}$" in latex and "\n% * p < .05" in latex
    assert r"**78.07** ± 0.21\*\* |" in comparison(rows, marks=marks, style="markdown")


def test_single_runs_are_compared_by_bootstrap() -> None:
    rng = np.random.default_rng(0)
    gold = rng.uniform(0, 5, 80)
    cosines = (gold + rng.normal(0, 3, 80), gold + rng.normal(0, 1, 80))
    right = (rng.random(80) < 0.6, rng.random(80) < 0.9)
    rows = [
        Row(
            label,
            [
                Report.of(
                    {"sts12": {"spearman": 100 * stats.spearmanr(c, gold).statistic}, "mr": {"accuracy": 100 * r.mean()}},
                    {"sts12": c, "mr": r},
                )
            ],
        )
        for label, c, r in zip("ab", cosines, right, strict=True)
    ]
    marks = significance(rows, {"sts12": gold})
    assert marks.p == {("b", "sts12"): paired_bootstrap(*cosines, gold).p, ("b", "mr"): sign_test(*right).p}
    assert marks.test.startswith("paired bootstrap over the test set")
    assert significance([rows[0], row("seeds", *seeds([1.0, 2.0]))], {"sts12": gold}).p == {}
    with pytest.raises(EvaluationError, match="a and b on sts12"):
        significance(rows, {"sts12": gold[:70]})


def test_a_published_p_value() -> None:
    """NonLing-CSE's Table 3: 75.74 ± 0.90 against 76.96 ± 0.38 over five seeds of the average is p = .0235."""

    def runs(mean: float, sd: float) -> list[dict[str, dict[str, float]]]:
        spread = np.array([-1.5, -0.5, 0.0, 0.5, 1.5])
        scores = mean + spread * sd / spread.std(ddof=1)
        return [{task: {"spearman": float(score)} for task in SEVEN} for score in scores]

    marks = significance([row("SimCSE", *runs(75.74, 0.90)), row("VisualCSE", *runs(76.96, 0.38))])
    assert marks.p["VisualCSE", AVERAGE] == pytest.approx(0.0235, abs=5e-4)  # of numbers rounded to 2 decimals


# --------------------------------------------------------------------------------------------------------- tables of runs


class Rated:
    """A task with ratings."""

    primary = "spearman"

    def __init__(self, name: str, gold: np.ndarray) -> None:
        self.name, self.gold = name, gold


def scored(task: Any, cosines: np.ndarray) -> Report:
    found = 100 * float(stats.spearmanr(cosines, task.gold).statistic)
    return Report.of({task.name: {"spearman": found, "pairs": len(cosines)}}, {task.name: cosines})


def test_the_table_of_a_run_says_what_is_not_significant() -> None:
    """With the p value of a comparison of the two encoders; the interval contains 0 if it is not significant."""
    rng = np.random.default_rng(5)
    task: Any = Rated("own", rng.uniform(0, 1, 110))
    noise = rng.normal(0, 1, (3, 110))
    before, *others = (scored(task, task.gold + size * one) for size, one in zip((1.0, 0.9, 0.2), noise, strict=True))
    for after, significant in zip(others, (False, True), strict=True):
        changes = before.changes(after, [task])
        marks = significance([Row("before", [before]), Row("after", [after])], {"own": task.gold})
        assert marks.p["after", "own"] == changes["own"]["p"] and (changes["own"]["p"] < 0.05) is significant
        assert (changes["own"]["low"] > 0) is significant
        head, line = run_rows(json.loads(json.dumps({"before": dict(before), "after": dict(after), "changes": changes})))
        assert head == ["task", "metric", "n", "before", "after", "change", "95 % interval"]
        gain, low, high = (f"{changes['own'][name]:+.2f}" for name in ("difference", "low", "high"))
        assert line[2] == "110" and line[5:] == [gain, f"{'' if significant else 'n.s.  '}{low} to {high}"]
        assert "n.s.: not significant" in run_legend(head)[0]


def test_a_run_without_examples_has_no_interval() -> None:
    """A run of an earlier version, and a task such as retrieval, which is only counted."""
    sides = {"before": {"r": {"mean_r1": 1.0}}, "after": {"r": {"mean_r1": 2.0}}}
    assert run_rows(sides) == [["task", "metric", "before", "after", "change"], ["r", "mean_r1", "1.00", "2.00", "+1.00"]]
    counted = sides | {"changes": {"r": {"metric": "mean_r1", "n": 1200}}}
    assert run_rows(counted)[1][2:] == ["1,200", "1.00", "2.00", "+1.00", "-"]


def test_the_worst_pairs_are_those_with_other_ranks() -> None:
    """Equal values share a rank; + is an overestimated similarity."""
    task = PairTask("own", Pairs(("a", "b", "c", "d"), ("e", "f", "g", "h"), (1.0, 2.0, 2.0, 4.0), ("all",) * 4), "votes")
    title, head, *lines = worst_table(task, np.array([0.9, 0.3, 0.25, 0.2]), 3).splitlines()
    assert title.endswith("from the votes") and head.split() == ["off", "rating", "cosine"]
    assert [line.split() for line in lines] == [
        *(["+75", "1.00", "0.900", "a"], ["e"]),
        *(["-75", "4.00", "0.200", "d"], ["h"]),
        *(["+12", "2.00", "0.300", "b"], ["f"]),
    ]
