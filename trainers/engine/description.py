"""What MLflow's pages say of a run, a sweep and a registered version: three sentences and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from multicse.trainers.engine.card import SHOWN

MOST = 3
"""Tasks whose numbers are said."""


def describe(
    name: str, data: Sequence[Mapping[str, Any]], result: Mapping[str, Any], figures: Sequence[str], why: str = ""
) -> str:
    """Before and after; what it was trained on; why these weights. Markdown.

    name: of the recipe. data: rows of `describe_shards_of`. result: ``before`` and ``after``, each task -> metric -> value,
    ``steps``, ``best_step`` and ``best_score``. figures: artifacts of the run, of which the first is named. why: in place of
    the sentence about the step that was chosen.
    """
    sentences = [_change(result), _trained_on(name, data), why or _chosen(result)]
    figure = f"\n\nFirst figure: `{figures[0]}` of the artifacts." if figures else ""
    return " ".join(sentences) + figure


def _change(result: Mapping[str, Any]) -> str:
    before, after = result["before"], result["after"]
    changes = []
    for task, metrics in after.items():
        metric = next((metric for metric in SHOWN if metric in metrics), None)
        if metric is not None and metric in before.get(task, {}):
            changes.append(f"{task} ({metric}) went from {before[task][metric]:.2f} to {metrics[metric]:.2f}")
    return f"By training {', '.join(changes[:MOST])}." if changes else "Nothing was measured before and after training."


def _trained_on(name: str, data: Sequence[Mapping[str, Any]]) -> str:
    licences = ("licence unknown" if row["licence"] in ("", "unknown") else row["licence"] for row in data)
    parts = [f"{row['samples']:,} samples of {row['name']} ({licence})" for row, licence in zip(data, licences, strict=True)]
    return f"`{name}` was trained on {' and '.join(parts)}."


def _chosen(result: Mapping[str, Any]) -> str:
    step, steps, score = result["best_step"], result["steps"], result["best_score"]
    if score is None:
        return f"The weights are those of the last of {steps} steps, as no development task chose among them."
    if step == 0:
        return f"No step of {steps} was better than the start on the development task ({score:.2f}), so the start was kept."
    return f"The weights are those of step {step} of {steps}, kept for their score on the development task ({score:.2f})."
