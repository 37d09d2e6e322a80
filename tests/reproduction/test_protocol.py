"""The protocol of comparisons: grids that bracket the best rate, and stored results that break its rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicse.pipelines import visualcse
from multicse.reproduction import reproduce
from multicse.reproduction.tables import runs
from multicse.reproduction.tables.model_figures import cells as drawn
from multicse.reproduction.tables.pool import Pool
from multicse.reproduction.tables.protocol import FARTHEST, bracket, by_rate, expected_power, faults, too_short, winner
from multicse.reproduction.tables.table import Row, Table
from multicse.trainers.engine.step import NonFiniteLoss
from multicse.trainers.recipe import Recipe

STORED = sorted((Path(__file__).parents[2] / "docs" / "results").glob("evidence-*.json"))


@given(st.integers(-9, 9), st.integers(0, 9))
def test_the_grid_is_extended_until_the_best_is_inside(peak: int, ceiling: int) -> None:
    """Scores with one maximum, which diverge above a ceiling."""
    tried = list[int]()

    def scores(powers: Sequence[int]) -> list[float]:
        tried.extend(powers)
        return [-abs(power - peak) if power <= ceiling else -np.inf for power in powers]

    found = bracket(scores)
    assert sorted(tried) == sorted(found) == list(range(min(found), max(found) + 1)) and {-1, 0, 1} <= found.keys()
    best = max(found, key=lambda power: found[power])
    wanted = min(max(-FARTHEST, min(peak, FARTHEST)), ceiling)
    assert best == wanted
    assert min(found) < best < max(found) or abs(best) == FARTHEST


def cell(factor: float, seed: int, score: float | None, best: int = 5, steps: int = 10) -> dict[str, Any]:
    return {"factor": factor, "seed": seed, "score": score, "best_step": best, "steps": steps}


@pytest.mark.parametrize("sign", [1, -1])
def test_a_row_is_tuned_with_seeds_of_its_own(sign: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the mean over seeds on the development task, or its loss; a rate that diverges with one seed is not chosen."""
    recipe, tried = visualcse.demo(), list[tuple[int, str, float, float]]()

    def trained(written: str, seed: int, output: Path) -> dict[str, Any]:
        rates = runs.rates_of(Recipe.from_json(written))
        text, image = (rates[path] / recipe.flat()[path] for path in ("optim.text.lr", "optim.image.lr"))
        tried.append((seed, output.parent.name, text, image))
        if text > 5 and seed == 12:
            raise NonFiniteLoss("text")
        return {"best_score": sign * (10 * text + seed), "best_step": 6 if text < 2 else 3, "steps": 6}

    monkeypatch.setattr(runs, "run_seed", trained)
    monkeypatch.setattr(runs, "lower_is_better", lambda task: sign < 0)
    scale = runs.Scale(tmp_path, tmp_path)
    cells = runs.tuned(Row("r", "visualcse/demo"), recipe, (11, 12), scale, Pool())
    assert runs.at_rate(recipe, winner(cells)).flat()["optim.text.lr"] == pytest.approx(3 * recipe.flat()["optim.text.lr"])
    assert [(seed, round(text, 3), round(image, 3)) for seed, _, text, image in tried] == [
        (seed, factor, factor) for factor in (0.333, 1.0, 3.0, 9.0) for seed in (11, 12)
    ]
    assert len({folder for _, folder, _, _ in tried}) == 4
    assert by_rate(cells) == pytest.approx({1 / 3: 10 / 3 + 11.5, 1.0: 21.5, 3.0: 41.5, 9.0: -np.inf})
    assert winner(cells) == 3.0 and not too_short(cells)
    assert len(drawn({"r": cells}).axes) == 1


@pytest.mark.parametrize(
    ("enough", "tried"),
    [
        ({"a": 1, "b": 2, "d": 1}, [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("d", 2)]),
        ({"a": 8, "b": 8, "d": 1}, [("a", 1), ("a", 2), ("a", 4), ("b", 4), ("d", 4)]),  # 4: the largest
    ],
)
def test_rows_are_lengthened_together(
    enough: dict[str, int], tried: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As soon as one is too short; at the largest length all are tuned whatever is too short."""
    asked = list[tuple[str, int]]()

    def tuned(row: Row, recipe: Recipe, seeds: Sequence[int], scale: runs.Scale, pool: Pool) -> list[dict[str, Any]]:
        asked.append((row.label, scale.length))
        return [cell(1.0, 11, 1.0, best=10 if scale.length < enough[row.label] else 5)]

    monkeypatch.setattr(runs, "tuned", tuned)
    rows = (Row("a", "x"), Row("b", "x"), Row("c", model="y"), Row("d", "x"))
    monkeypatch.setattr(runs, "scaled", lambda *_: visualcse.demo())
    table, scale = Table("t", (), rows, tuning=(11,)), runs.Scale(tmp_path, tmp_path, True)
    scale, cells = runs.tuned_rows(table, "evidence", scale, rows, print, Pool())
    assert scale.length == tried[-1][1] and asked == tried and all(cells.values())


def test_longer_runs_are_evaluated_as_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that learns fast is at its best early, however long a slow row of its table has to be trained."""
    monkeypatch.setattr(runs.evidence, "mini", lambda recipe, offline: recipe)
    given = {"run.max_steps": 200, "evaluation.eval_steps": 17}
    row = Row("r", "visualcse/demo", changes=given)
    scale = runs.Scale(tmp_path, tmp_path, True, length=2)
    assert {path: runs.scaled(row, "evidence", scale).flat()[path] for path in given} == {**given, "run.max_steps": 400}


def stored(**changes: Any) -> dict[str, Any]:
    """Return two rows of two seeds that keep the rules, with changes of the second."""
    run = {"best_step": 5, "steps": 10, "eval_steps": 1, "commit": "c"}
    results = [
        {"label": label, "seed": seed, **run, **(changes if label == "b" else {})} for label in "ab" for seed in (1, 2)
    ]
    tuning = {label: [cell(factor, 11, -abs(factor - 1)) for factor in (0.3, 1, 3)] for label in "ab"}
    return {"results": [*results, {"label": "untrained", "scores": {}}], "tuning": tuning}


def test_rules_of_stored_results() -> None:
    assert faults(stored()) == {}
    assert faults(stored(best_step=10)) == {"b": ["best step is the last"]}
    assert faults(stored(best_step=1)) == {"b": ["best step is the first"]}
    assert faults(stored(commit="d")) == {"a": ["several commits"], "b": ["several commits"]}
    edge = stored()
    edge["tuning"]["b"] = [cell(1.0, 11, 2.0), cell(3.0, 11, 1.0), cell(9.0, 11, None)]
    assert faults(edge) == {"b": ["best learning rate on the edge"]}
    del edge["tuning"]["a"]
    assert faults(edge)["a"] == ["learning rates tried with one seed, not recorded"]


BROKEN = {"evidence-tuned": {"pairs of captions": ["best step is the first"]}}
"""Rules that rows break although they were measured by the protocol."""


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_stored_results_keep_the_rules_or_their_claims_are_open(file: Path) -> None:
    kept = json.loads(file.read_text())
    verdicts = reproduce._judged(kept)
    if "tuning" in kept:
        assert faults(kept) == (broken := BROKEN.get(file.stem, {}))
        rows = {claim.says: {claim.row, claim.against} for claim in reproduce.tables_of("evidence")[kept["table"]].claims}
        assert all((one.word == "open") == bool(rows[one.says] & broken.keys()) for one in verdicts)
    else:  # measured before the protocol
        assert verdicts and all(one.word == "open" for one in verdicts)


def test_power_is_expected_from_the_tuning_seeds() -> None:
    tuning = {
        "a": [cell(1.0, seed, score) for seed, score in ((11, 60.0), (12, 61.0), (13, 62.5))],
        "b": [cell(3.0, seed, score) for seed, score in ((11, 61.0), (12, 61.5), (13, 63.0))],
    }
    few, many = (expected_power(tuning, "b", "a", 0.5, seeds) for seeds in (3, 8))
    assert few is not None and many is not None and 0.05 < few < many < 1
    assert expected_power(tuning, "b", "none", 0.5, 5) is None
