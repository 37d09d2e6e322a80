"""The three sentences that MLflow's pages show."""

from __future__ import annotations

from typing import Any

from multicse.trainers.engine.description import describe

DATA: list[dict[str, Any]] = [
    {"name": "wiki", "samples": 1977, "licence": "CC BY-SA 4.0"},
    {"name": "photos", "samples": 20, "licence": "unknown"},
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
    why = describe("x/y", DATA, RESULT | {"after": {}}, [], "It is trial 3.")  # as a sweep says of its best
    assert why.startswith("Nothing was measured") and why.endswith("unknown). It is trial 3.")
