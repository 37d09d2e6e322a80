"""The three sentences that MLflow's pages show."""

from __future__ import annotations

from typing import Any

import pytest

from trainers.engine.description import describe

DATA: list[dict[str, Any]] = [
    {"name": "wiki", "samples": 1977, "licence": "CC BY-SA 4.0"},
    {"name": "photos", "samples": 20, "licence": ""},
]
RESULT: dict[str, Any] = {
    "before": {"lee": {"spearman": 39.7, "alignment": 0.5}},
    "after": {"lee": {"spearman": 48.26, "alignment": 0.4}},
    "steps": 128,
    "best_step": 96,
    "best_score": 45.1,
}


def test_before_and_after_data_and_the_reason() -> None:
    text = describe("visualcse/photos", DATA, RESULT, ["figures/first.png", "figures/second.png"])
    sentences, _, figure = text.partition("\n\n")
    assert sentences.split(". ") == [
        "By training lee (spearman) went from 39.70 to 48.26",
        "`visualcse/photos` was trained on 1,977 samples of wiki (CC BY-SA 4.0) and 20 samples of photos (licence unknown)",
        "The weights are those of step 96 of 128, kept for their score on the development task (45.10).",
    ]
    assert "figures/first.png" in figure and "second" not in figure


@pytest.mark.parametrize(
    ("changes", "why", "words"),
    [
        ({"best_step": 0}, "", "No step of 128"),
        ({"best_score": None}, "", "the last of 128 steps"),
        ({"after": {}}, "", "Nothing was measured"),
        ({}, "It is trial 3.", "unknown). It is trial 3."),
    ],
)
def test_what_else_a_run_may_come_to(changes: dict[str, Any], why: str, words: str) -> None:
    assert words in describe("x/y", DATA, RESULT | changes, [], why)
