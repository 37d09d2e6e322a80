"""The table of a sweep: on a terminal, and when the sweep has ended."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from multicse.evaluation.statistics import Summary
from multicse.pipelines.sweep import _last_words
from multicse.pipelines.sweep_table import SweepTable, final_table, status_line, table
from multicse.trainers.tuning.trials import Status, Trial

METRIC = "lee-dev/spearman"


def trial(number: int, score: float | None, status: Status = "finished", **kept: Any) -> Trial:
    """By default at its end; numbers above 0 change two parameters."""
    changes = {"optim.text.lr": number * 1e-5, "method.image.loss": f"loss{number}"} if number else {}
    curve = () if score is None else ((4, score),)
    given: dict[str, Any] = {"pipeline": "visualcse", "changes": changes, "step": 8, "steps": 8, "curve": curve} | kept
    return Trial(number=number, status=status, best=score, **given)


SWEEP = [
    trial(0, 40.0),
    trial(1, 44.25),
    trial(2, 42.0, "stopped", step=2),
    trial(3, 41.0, "running", step=4),
    trial(4, None, "failed", error="NonFiniteLoss: text is [bold]nan[/bold]"),
    trial(5, None, "waiting", step=0),
]


def printed(what: RenderableType) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=120).print(what)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_row_a_trial() -> None:
    assert [line.split() for line in printed(table(SWEEP[:3], METRIC))] == [
        ["trial", "pipeline", "status", "step", "seeds", METRIC, "text.lr", "image.loss"],
        ["0", "visualcse", "finished", "8/8", "1", "40.00", "-", "-"],
        ["1", "visualcse", "finished", "8/8", "1", "44.25", "1e-05", "loss1"],
        ["2", "visualcse", "stopped", "early", "2/8", "1", "42.00", "2e-05", "loss2"],
    ]


def test_a_terminal_is_rewritten_in_place_and_given_back() -> None:
    file = io.StringIO()
    shown = SweepTable(METRIC, 16, Console(file=file, force_terminal=True, width=120, height=30))
    shown.update(SWEEP[:2])
    first = len(file.getvalue())
    shown.update(SWEEP)
    second = file.getvalue()[first:]
    assert "\x1b[1A" in second and status_line(SWEEP, 16, 200.0).startswith(
        "trial 4/16  1 running  1 stopped early  1 failed"
    )
    assert second.index("3e-05") < second.index("1e-05") < second.index("2e-05") < second.index("4e-05")
    shown.close()
    assert "\x1b[?25h" in file.getvalue()[first:]  # the cursor is back


def test_the_best_the_recipe_as_it_stands_and_what_failed_at_the_end() -> None:
    lines = printed(final_table(SWEEP, METRIC, n=2))
    assert [line.split()[0] for line in lines[:4]] == ["trial", "1", "2", "0"]
    assert lines[4:] == [
        "trial 0: the recipe of visualcse as it stands",
        "trials with lower scores: 1",
        "trial 4 failed: NonFiniteLoss: text is [bold]nan[/bold]",
    ]


def test_held_out_scores_stand_beside_the_start_and_its_whitening() -> None:
    scores = {"lee": {"spearman": Summary(48.0, None, 1)}, "mr": {"accuracy": Summary(70.0, None, 1)}}
    summary = {
        "before": {"lee": {"spearman": 40.0}, "mr": {"accuracy": 60.0}},
        "baseline": {"lee": {"spearman": 44.0}},
        "held_out": {"best": scores, "as it stands": scores},
        "best": {"trial": 3, "score": 50.0, "pipeline": "simcse"},
        "as_it_stands": {"score": None},
        "trials": dict.fromkeys(("finished", "stopped", "failed"), 1),
        **dict.fromkeys(("metric", "recipe", "export", "model", "mlflow_run_id", "tracking_uri"), "x"),
    }
    lines = [line.split() for line in _last_words(summary).splitlines()]
    assert ["lee", "spearman", "40.00", "44.00", "48.00", "48.00"] in lines
    assert ["mr", "accuracy", "60.00", "-", "70.00", "70.00"] in lines
    lines = [line.split() for line in _last_words(summary | {"baseline": {}}).splitlines()]
    assert ["lee", "spearman", "40.00", "48.00", "48.00"] in lines
