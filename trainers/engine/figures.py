"""The figures of a run: what its journal and its export have to show on the development task."""

from __future__ import annotations

from pathlib import Path

import torch

from multicse.evaluation.registry import make_tasks
from multicse.evaluation.tasks.sts import PairTask
from multicse.trainers.engine.checkpoint import module_encoder
from multicse.trainers.engine.tracking import Journal, RunHandle
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe

History = list[tuple[int, dict[str, float]]]
"""Step and metrics of one task, in the order of the steps."""


def log_figures(recipe: Recipe, method: Method, handle: RunHandle, output: Path) -> None:
    """Alignment against uniformity over training, and of the trained model similarity by rating where the development task
    is of rated pairs; ``evaluate.py --figures`` draws more of an export. Raises ValueError where one cannot be drawn."""
    from multicse.evaluation.figures.basic import alignment_uniformity_figure, similarity_by_gold_figure

    if recipe.evaluation.select is None:
        return
    over_training = histories(output / "journal.jsonl")
    if found := over_training.get(f"{recipe.evaluation.select}-geometry"):
        points = [(step, values["alignment"], values["uniformity"]) for step, values in found]
        handle.log_figure("alignment_uniformity", alignment_uniformity_figure(points))
    for name, found in over_training.items():
        if found and "text_uniformity" in found[0][1]:  # of items with captions
            points = [(step, values["alignment"], values["text_uniformity"]) for step, values in found]
            handle.log_figure(f"{name.replace(':', '_')}_over_training", alignment_uniformity_figure(points))
    (task,) = make_tasks([recipe.evaluation.select], recipe.evaluation.data)
    if isinstance(task, PairTask):
        cosines = task.similarities(module_encoder(method, torch.device("cpu")))
        handle.log_figure(f"similarity_{task.name}", similarity_by_gold_figure(cosines, task.gold))


def histories(journal: Path) -> dict[str, History]:
    """Metrics of every task at every evaluation; of a step that was repeated after a restart the last ones."""
    steps: dict[str, dict[int, dict[str, float]]] = {}
    for _, entry in Journal(journal).lines():
        for name, value in entry.get("metrics", {}).items():
            if name.startswith("eval/"):
                task, _, metric = name.removeprefix("eval/").rpartition("/")
                steps.setdefault(task, {}).setdefault(entry["step"], {})[metric] = value
    return {task: sorted(values.items()) for task, values in steps.items()}
