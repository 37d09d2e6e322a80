"""Trials as records, and what the figures of a sweep show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evaluation.figures.basic import save
from trainers.tuning.figures import (
    AS_IT_STANDS,
    SCORES,
    best_so_far,
    importances,
    learning_curves,
    parallel_coordinates,
    parameter_importance,
    score_against,
    sweep_figures,
)
from trainers.tuning.trials import Status, Trial, best_trial, ranked, short_names, show, varied

METRIC = "lee-dev/spearman"
RATE, WEIGHT, LOSS = "optim.text.lr", "method.image.weight", "method.image.loss"
DEFAULTS = {"visualcse": {RATE: 1e-4, WEIGHT: 0.5, LOSS: "supcon", "run.seed": 0}}


def trial(number: int, score: float | None, status: Status = "finished", **kept: Any) -> Trial:
    """A trial whose curve rises to its score in three evaluations."""
    changes = kept.pop("changes", {})
    curve = () if score is None else tuple((step, score - 8 + step) for step in (2, 4, 8))
    given: dict[str, Any] = {"pipeline": "visualcse", "step": 8, "steps": 16, "curve": curve} | kept
    return Trial(number=number, changes=changes, status=status, best=score, **given)


def change(rate: float, weight: float, loss: str = "supcon") -> dict[str, Any]:
    return {RATE: rate, WEIGHT: weight, LOSS: loss}


TRIALS = [
    trial(0, 40.0),
    trial(1, 44.0, changes=change(1e-5, 0.0)),
    trial(2, 42.0, "stopped", changes=change(1e-3, 1.0, "simclr")),
    trial(3, 48.0, changes=change(1e-2, 0.25)),
    trial(4, 99.0, "failed", changes=change(1.0, 50.0)),
    trial(5, None, "running", changes=change(1.0, 50.0)),
]


def lines(axes: Axes) -> dict[str, Line2D]:
    """The lines of trials by their name; of several the last."""
    return {str(line.get_label()): line for line in axes.lines if str(line.get_label()).startswith("trial")}


def texts(figure: Figure) -> list[str]:
    """What the legend says."""
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def ys(line: Line2D) -> list[float]:
    return np.asarray(line.get_ydata(), float).tolist()


def xs(line: Line2D) -> list[float]:
    return np.asarray(line.get_xdata(), float).tolist()


# ------------------------------------------------------------------------------------------------------------- records


def test_ranked_and_best() -> None:
    nan = trial(6, math.nan)
    tie = trial(7, 48.0, "stopped")
    assert [t.number for t in ranked([tie, nan, *TRIALS])] == [3, 7, 1, 2, 0]
    assert [t.number for t in ranked([trial(8, 41.0, seeds=3), trial(9, 42.0, seeds=3), *TRIALS[:2]])] == [9, 8, 1, 0]
    best = best_trial(TRIALS)
    assert best is not None and best.number == 3 and best_trial([nan, *TRIALS[4:]]) is None
    with pytest.raises(ValueError, match="trial 4 is failed"):
        _ = TRIALS[4].score
    assert [t.ended for t in TRIALS] == [True] * 5 + [False]
    assert [t.as_it_stands for t in TRIALS] == [True] + [False] * 5


def test_names_and_values_are_short() -> None:
    paths = [RATE, "optim.image.lr", "method.text.weight", "encoder.text.weight", "a.b"]
    assert list(short_names(paths).values()) == ["text.lr", "image.lr", "method.text.weight", "encoder.text.weight", "a.b"]
    assert short_names(["x.y", "z.x.y"]) == {"x.y": "x.y", "z.x.y": "z.x.y"}
    assert [show(v) for v in (3.14159e-6, 64, True, None, [1, 2], "a")] == ["3.14e-06", "64", "True", "None", "(1, 2)", "a"]
    assert varied(TRIALS) == [RATE, WEIGHT, LOSS]


# ------------------------------------------------------------------------------------------------------ over parameters


def test_parallel_coordinates_against_heights_by_hand() -> None:
    figure = parallel_coordinates(TRIALS, METRIC, DEFAULTS)
    axes = figure.axes[0]
    drawn = lines(axes)
    expected = {  # log10 from 1e-5 to 1e-2, linear from 0 to 1, choices in the order of the alphabet, 40 to 48
        "trial 0": [1 / 3, 0.5, 1, 0],
        "trial 1": [0, 0, 1, 0.5],
        "trial 2": [2 / 3, 1, 0, 0.25],
        "trial 3": [1, 0.25, 1, 1],
    }
    assert set(drawn) == set(expected)
    for name, heights in expected.items():
        assert ys(drawn[name]) == pytest.approx(heights), name
    assert drawn["trial 2"].get_linewidth() < drawn["trial 1"].get_linewidth() < drawn["trial 3"].get_linewidth()
    assert drawn["trial 3"].get_color() == pytest.approx(SCORES(1.0))
    assert (drawn["trial 0"].get_color(), drawn["trial 0"].get_linestyle()) == ("black", "--")
    stars = [line for line in axes.lines if line.get_marker() == "*"]
    assert [(xs(star), ys(star)) for star in stars] == [([3.0], [1.0])]
    labels = [label.get_text().replace("\n", "") for label in axes.get_xticklabels()]
    assert labels == [RATE, WEIGHT, LOSS, METRIC]
    assert {"supcon", "simclr", "1e-05", "0.0001", "0.25"} <= {text.get_text() for text in axes.texts}
    assert texts(figure) == ["ran to the end", "stopped early", "best", AS_IT_STANDS]
    assert figure.axes[1].get_ylabel() == METRIC


def test_without_defaults_the_recipe_is_its_score_alone() -> None:
    drawn = lines(parallel_coordinates(TRIALS, METRIC).axes[0])
    assert ys(drawn["trial 0"]) == pytest.approx([np.nan] * 3 + [0], nan_ok=True)


def test_a_zero_among_values_of_many_sizes_stays_on_the_axis() -> None:
    found = [trial(i, float(i), changes={"a.b": v, "c.d": i}) for i, v in enumerate([0.0, 0.001, 0.1, 10.0])]
    drawn = lines(parallel_coordinates(found, METRIC).axes[0])
    first = [ys(drawn[f"trial {i}"])[0] for i in range(4)]
    assert first[0] == 0 and first[3] == 1 and first[3] - first[2] == pytest.approx(first[2] - first[1])
    assert score_against(found, METRIC).axes[0].get_xscale() == "symlog"


def test_one_score_far_below_does_not_take_all_colours() -> None:
    scores = [5.0, 40.0, 41.0, 42.0, 43.0, 44.0]
    found = [trial(i, score, changes={"a.b": i, "c.d": -i}) for i, score in enumerate(scores, 1)]
    drawn = lines(parallel_coordinates(found, METRIC).axes[0])
    assert drawn["trial 1"].get_color() == drawn["trial 2"].get_color() == pytest.approx(SCORES(0.0))
    assert drawn["trial 4"].get_color() == pytest.approx(SCORES(0.5))


def test_score_against_every_parameter() -> None:
    figure = score_against(TRIALS, METRIC, DEFAULTS)
    rate, weight, loss = figure.axes
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "linear", "linear"]
    assert [axes.get_xlabel() for axes in figure.axes] == [RATE, WEIGHT, LOSS] and rate.get_ylabel() == METRIC
    assert [label.get_text() for label in loss.get_xticklabels()] == ["simclr", "supcon"]
    assert [label.get_text() for label in weight.get_xticklabels()] == ["0", "0.25", "0.5", "1"]
    given = {0: 1e-4, 1: 1e-5, 2: 1e-3, 3: 1e-2}
    drawn = lines(rate)
    assert {name: (*xs(line), *ys(line)) for name, line in drawn.items()} == {
        f"trial {i}": (value, TRIALS[i].best) for i, value in given.items()
    }
    assert [drawn[f"trial {i}"].get_marker() for i in range(4)] == ["D", "o", "v", "o"]
    choices = {name: round(xs(line)[0]) for name, line in lines(loss).items()}  # they are spread a little
    assert choices == {"trial 0": 1, "trial 1": 1, "trial 2": 0, "trial 3": 1}
    assert texts(figure) == ["ran to the end", "stopped early", "best", AS_IT_STANDS]


def test_values_that_would_lie_on_each_other_become_choices() -> None:
    momenta = [0.0, 0.9, 0.99, 0.999]
    found = [trial(i, float(i), changes={"a.momentum": momenta[i % 4], "a.rest": None if i % 2 else 64}) for i in range(8)]
    momentum, rest = score_against(found, METRIC).axes
    assert [label.get_text() for label in momentum.get_xticklabels()] == ["0", "0.9", "0.99", "0.999"]
    assert [round(xs(lines(momentum)[f"trial {i}"])[0]) for i in range(4)] == [0, 1, 2, 3]
    assert [label.get_text() for label in rest.get_xticklabels()] == ["64", "None"]


def test_lists_and_tuples_are_the_same_choice() -> None:
    found = [trial(i, float(i), changes={"e.regions": r}) for i, r in enumerate([(1, 2), [1, 2], (3, 4)])]
    (axes,) = score_against(found, METRIC).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["(1, 2)", "(3, 4)"]


def test_no_names_overlap_over_eight_parameters() -> None:
    names = [f"optim.text.groups.predictor{i}.weight_decay" for i in range(8)]
    rng = np.random.default_rng(0)
    found = [trial(i, float(i), changes=dict(zip(names, rng.random(8), strict=True))) for i in range(12)]
    for figure in (parallel_coordinates(found, METRIC), score_against(found, METRIC)):
        figure.draw_without_rendering()
        labels = figure.axes[0].get_xticklabels() if len(figure.axes) == 2 else [a.xaxis.label for a in figure.axes]
        boxes = [label.get_window_extent() for label in labels if label.get_text()]
        assert len(boxes) >= 8
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        assert all(box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1 for box in boxes)


# ----------------------------------------------------------------------------------------------------------- importance


def table(rows: Sequence[dict[str, Any]], scores: Sequence[float]) -> list[Trial]:
    return [trial(i, float(score), changes=row) for i, (row, score) in enumerate(zip(rows, scores, strict=True), 1)]


def test_importance_of_a_known_function() -> None:
    """10 a + b of independent uniforms: a has 100 of 101 parts of the variance."""
    rng = np.random.default_rng(0)
    rows = [{"x.a": a, "x.b": b} for a, b in rng.random((60, 2))]
    found = importances(table(rows, [10 * row["x.a"] + row["x.b"] for row in rows]))
    assert list(found) == ["x.a", "x.b"] and sum(found.values()) == pytest.approx(1)
    assert found["x.a"] == pytest.approx(100 / 101, abs=0.03)


def test_importance_against_an_analysis_of_variance() -> None:
    """A full grid, thrice: shares of the sums of squares of the main effects, with an interaction that counts for none."""
    rows = [dict(zip(("x.a", "x.b", "x.c"), row, strict=True)) for row in itertools.product("pqr", "stu", (True, False))] * 3
    effect = {"p": 0.0, "q": 1.0, "r": 3.0, "s": 0.0, "t": 2.0, "u": 0.5, True: 0.6, False: 0.0}
    both = [0.5 if row["x.a"] == "p" and row["x.c"] else 0.0 for row in rows]
    scores = [sum(effect[v] for v in row.values()) + extra for row, extra in zip(rows, both, strict=True)]
    squares = {}
    for path in rows[0]:
        values = [row[path] for row in rows]
        means = {value: np.mean([s for s, v in zip(scores, values, strict=True) if v == value]) for value in set(values)}
        squares[path] = sum((means[value] - np.mean(scores)) ** 2 for value in values)
    total = sum(squares.values())
    found = importances(table(rows, scores))
    assert found == pytest.approx({path: value / total for path, value in squares.items()}, abs=0.06)


def test_importance_counts_decades_alike() -> None:
    """log10(rate) over six decades and b, equally wide: half each, though nine tenths of the rates are one decade."""
    middles = (np.arange(12) + 0.5) / 12
    rows = [{"x.rate": float(10 ** (6 * u - 7)), "x.b": float(v)} for u, v in itertools.product(middles, middles)]
    found = importances(table(rows, [math.log10(row["x.rate"]) / 6 + row["x.b"] for row in rows]))
    assert found["x.rate"] == pytest.approx(0.5, abs=0.03)  # 0.07 in the rates themselves


def test_importance_repeats_itself_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(2)
    found = table([{"x.a": a, "x.b": b} for a, b in rng.random((12, 2))], rng.random(12).tolist())
    before = optuna.logging.get_verbosity()
    assert importances(found, seed=3) == importances(found, seed=3) != importances(found, seed=4)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


def test_the_importance_figure_says_what_it_rests_on() -> None:
    rng = np.random.default_rng(3)
    rows = [{"x.a": a, "x.$b$": b} for a, b in rng.random((9, 2))]
    found = table(rows, [5 * row["x.a"] for row in rows])
    found += [trial(20, 1.0, "stopped", changes=rows[0] | {"x.a": 0.2}), trial(0, 1.0), trial(21, 1.0, "failed")]
    figure = parameter_importance(found, METRIC)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x.a", "x.$b$"]
    shares = importances(found)
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(list(shares.values()))  # type: ignore[attr-defined]
    caption = figure.get_supxlabel().replace("\n", " ")
    assert "fANOVA" in caption and "on 10 trials, 1 of them stopped early, which count" in caption  # trial 0: values unknown
    known = parameter_importance(found, METRIC, {"visualcse": {"x.a": 0.5, "x.$b$": 0.5}})
    assert "on 11 trials" in known.get_supxlabel()
    figure.draw_without_rendering()


# ------------------------------------------------------------------------------------------------------------ over time


def test_best_so_far_in_the_order_of_the_ends() -> None:
    ends = [30.0, 10.0, 20.0, 50.0, 40.0]
    scores = [41.0, 40.0, 43.0, 42.0, 44.0]
    found = [
        trial(i, score, "stopped" if i == 2 else "finished", ended_at=end, changes={} if i == 0 else {RATE: float(i)})
        for i, (score, end) in enumerate(zip(scores, ends, strict=True))
    ]
    figure = best_so_far([*found, *TRIALS[4:]], METRIC)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "0", "4", "3"]
    (steps,) = (line for line in axes.lines if line.get_label() == "visualcse")
    assert (xs(steps), ys(steps)) == ([0, 1, 2, 3, 4], [40, 43, 43, 44, 44]) and steps.get_drawstyle() == "steps-post"
    points = {name: (*xs(line), *ys(line), line.get_marker()) for name, line in lines(axes).items()}
    expected = {1: (0, 40, "o"), 2: (1, 43, "v"), 0: (2, 41, "D"), 4: (3, 44, "o"), 3: (4, 42, "o")}
    assert points == {f"trial {number}": point for number, point in expected.items()}
    assert [ys(line) for line in axes.lines if line.get_linestyle() == "--"] == [[41, 41]]
    assert "ended" in axes.get_xlabel() and axes.get_ylabel() == METRIC
    assert texts(figure) == ["best so far", "ran to the end", "stopped early", "best", AS_IT_STANDS]


def test_one_lucky_seed_is_not_the_best_so_far() -> None:
    seeds, scores = [1, 3, 1, 3, 3], [45.0, 40.0, 50.0, 42.0, 41.0]
    found = [trial(i, score, seeds=n) for i, (score, n) in enumerate(zip(scores, seeds, strict=True), 1)]
    (axes,) = best_so_far(found, METRIC).axes
    (steps,) = (line for line in axes.lines if line.get_label() == "visualcse")
    assert ys(steps) == pytest.approx([np.nan, 40, 40, 42, 42], nan_ok=True)
    assert [ys(line) for line in axes.lines if line.get_marker() == "*"] == [[42]]


def test_without_times_the_order_is_that_of_the_numbers() -> None:
    (axes,) = best_so_far([TRIALS[3], TRIALS[1], TRIALS[0]], METRIC).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "3"] and "numbers" in axes.get_xlabel()


def test_pipelines_race_in_their_own_colours() -> None:
    others = [trial(i, 50.0 - i, pipeline="audiocse", changes={} if i == 10 else {RATE: 0.1}) for i in (10, 11)]
    figure = best_so_far([*TRIALS, *others], METRIC)
    own = {line.get_label(): (to_hex(line.get_color()), ys(line)) for line in figure.axes[0].lines}
    assert own["visualcse"][1] == [40, 44, 44, 48] and own["audiocse"][1] == [40, 40]
    assert own["visualcse"][0] != own["audiocse"][0] and texts(figure)[-2:] == ["visualcse", "audiocse"]


def test_learning_curves() -> None:
    broken = trial(6, 46.0, curve=((1, 45.0), (2, math.nan), (3, 46.0)), changes={RATE: 0.1})
    running = trial(7, 47.0, "running", changes={RATE: 0.1})
    figure = learning_curves([*TRIALS, broken, running], METRIC)
    axes = figure.axes[0]
    drawn = lines(axes)
    assert set(drawn) == {f"trial {i}" for i in (0, 1, 2, 3, 6, 7)}
    for i in (0, 1, 2, 3):
        assert list(zip(xs(drawn[f"trial {i}"]), ys(drawn[f"trial {i}"]), strict=True)) == list(TRIALS[i].curve)
    assert (xs(drawn["trial 6"]), ys(drawn["trial 6"])) == ([1, 3], [45, 46])
    for i, share in ((3, 1.0), (1, 0.5), (2, 0.25)):  # between 40 and 48
        assert drawn[f"trial {i}"].get_color() == pytest.approx(SCORES(share)), i
    assert drawn["trial 3"].get_linewidth() > drawn["trial 1"].get_linewidth()
    marks = {line.get_marker(): (*xs(line), *ys(line)) for line in axes.lines if line.get_marker() in ("x", "*")}
    assert marks == {"x": (8, 42), "*": (8, 48)}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", METRIC) and METRIC in figure.axes[1].get_ylabel()


# ------------------------------------------------------------------------------------------------------- all of a sweep


def many(pipeline: str, first: int = 0, n: int = 16) -> list[Trial]:
    rng = np.random.default_rng(first)
    return [
        trial(
            first + i,
            float(40 + rng.random()),
            "stopped" if i % 3 == 1 else "finished",
            pipeline=pipeline,
            changes=change(10 ** rng.uniform(-6, -3), rng.random(), str(rng.choice(["supcon", "simclr"]))) if i else {},
        )
        for i in range(n)
    ]


KINDS = ["parallel_coordinates", "parameter_importance", "score_against"]


def test_all_figures_of_a_sweep_and_the_same_again(tmp_path: Path) -> None:
    found = sweep_figures(many("visualcse"), METRIC, DEFAULTS)
    assert [name for name, _ in found.figures] == [*KINDS, "best_so_far", "learning_curves"] and found.left_out == []
    again = sweep_figures(many("visualcse"), METRIC, DEFAULTS)
    for (name, figure), (_, same) in zip(found.figures, again.figures, strict=True):
        first, second = save(figure, tmp_path / "a", name), save(same, tmp_path / "b", name)
        assert [a.read_bytes() == b.read_bytes() for a, b in zip(first, second, strict=True)] == [True, True], name


def test_figures_of_two_pipelines() -> None:
    trials = [*many("visualcse"), *many("audiocse", 20, 4)]
    names = [f"{kind}_{pipeline}" for pipeline in ("visualcse", "audiocse") for kind in KINDS]
    found = sweep_figures(trials, METRIC, DEFAULTS)
    drawn = [name for name, _ in found.figures]
    assert drawn == [*(name for name in names if name != "parameter_importance_audiocse"), "best_so_far", "learning_curves"]
    assert found.left_out == ["parameter_importance_audiocse: needs at least 8 trials with a score, got 3"]
    curves = dict(found.figures)["learning_curves"]
    assert [axes.get_title() for axes in curves.axes[:2]] == ["visualcse", "audiocse"]
    assert [len(lines(axes)) for axes in curves.axes[:2]] == [16, 4]


def test_what_cannot_be_drawn_is_left_out_with_the_reason() -> None:
    one = [trial(i, float(i), changes={RATE: 10.0**-i, "run.constant": 3}) for i in range(1, 10)]
    found = sweep_figures(one, METRIC)
    assert [name for name, _ in found.figures] == ["score_against", "best_so_far", "learning_curves"]
    assert found.left_out == [
        "parallel_coordinates: needs two trials with a score and two parameters, got 9 and 1",
        "parameter_importance: needs two varied parameters to compare, got 1",
    ]
    nothing = sweep_figures([trial(0, None, "waiting")], METRIC)
    assert nothing.figures == [] and len(nothing.left_out) == 5
    assert sweep_figures([], METRIC).left_out == [
        "best_so_far: no trial has ended with a score",
        "learning_curves: no trial was evaluated",
    ]


@pytest.mark.parametrize("draw", [parallel_coordinates, score_against, parameter_importance])
def test_several_pipelines_share_no_axes(draw: Any) -> None:
    with pytest.raises(ValueError, match=r"several pipelines \(visualcse, audiocse\).*each alone"):
        draw([*many("visualcse"), *many("audiocse", 20)], METRIC)


def test_equal_scores_have_no_important_parameter() -> None:
    rows = [{"x.a": float(i), "x.b": float(-i)} for i in range(9)]
    with pytest.raises(ValueError, match="all 9 trials have the score 7, so no parameter matters"):
        importances(table(rows, [7.0] * 9))


def test_too_many_names_for_an_axis() -> None:
    with pytest.raises(ValueError, match=r"a\.name has 30 different values"):
        score_against([trial(i, float(i), changes={"a.name": f"n{i}"}) for i in range(30)], METRIC)
