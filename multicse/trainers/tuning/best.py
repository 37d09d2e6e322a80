"""Export and held-out scores of a sweep's best trial."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from multicse.evaluation import statistics
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.report import Report, evaluate
from multicse.evaluation.task import Encoded, Task, encode_once
from multicse.trainers.engine.checkpoint import build_method, load_method, module_encoder, read_state
from multicse.trainers.engine.run import Run
from multicse.trainers.engine.selection import Selection
from multicse.trainers.engine.text_fit import whitened
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe
from multicse.trainers.tuning.trial import Plan
from multicse.trainers.tuning.trials import Trial


def checkpoints(plan: Plan, trial: Trial) -> dict[int, Path]:
    """Return the checkpoint folders of a trial by seed; of a stopped trial, only the seeds that were started."""
    recipe = plan.recipe(trial.changes)
    found = {seed: plan.store(recipe, trial.trial_id, seed).newest() for seed in plan.seeds}
    folders = {seed: folder for seed, folder in found.items() if folder is not None}
    if not folders:
        raise ValueError(f"trial {trial.number} has no checkpoint, so its model cannot be exported")
    return folders


def held_out(plan: Plan, trial: Trial) -> list[Report]:
    """Evaluate the final tasks for a trial, once per seed."""
    recipe, scores = plan.recipe(trial.changes), []
    for seed, folder in checkpoints(plan, trial).items():
        # The current recipe, since the checkpoint's recipe contains paths of the node that wrote it.
        here = recipe.replace("run.output_dir", str(plan.run_folder(trial.trial_id, seed)))
        scores.append(evaluate(*_encoded(here, load_method(folder, here))))
    return scores


def _encoded(recipe: Recipe, method: Method) -> tuple[list[Task], Encoded]:
    device = torch.device("cuda" if recipe.run.gpus_per_worker and torch.cuda.is_available() else "cpu")
    tasks = make_tasks(recipe.evaluation.final, recipe.evaluation.data)
    return tasks, encode_once(tasks, module_encoder(method.to(device).eval(), device))


def mean_scores(reports: Sequence[Report]) -> dict[str, dict[str, statistics.Summary]]:
    """Return task -> metric -> mean and sample standard deviation over seeds; averages over tasks are included as tasks."""
    every = [report.with_averages() for report in reports]
    return {
        task: {metric: statistics.summary([one[task][metric] for one in every]) for metric in metrics}
        for task, metrics in every[0].items()
    }


def deliver_best(plan: Plan, trial: Trial, after: Report, output: Path, model: str) -> dict[str, Any]:
    """Write export, card and figures of the best trial, from its first seed, and return the summary of this run.

    Args:
        plan: Plan of the sweep.
        trial: The best trial.
        after: Its held-out scores from the first seed, see `held_out`.
        output: Folder of the model.
        model: Name under which the sweep's MLflow run registers it.
    """
    seed, checkpoint = next(iter(checkpoints(plan, trial).items()))
    recipe = plan.recipe(trial.changes).changed({"run.seed": seed, "run.output_dir": str(output), "run.register_as": model})
    run = Run(recipe).adopt(result_of(recipe, checkpoint, after), checkpoint)
    run.deliver()
    return run.summary


def result_of(recipe: Recipe, checkpoint: Path, after: Report) -> dict[str, Any]:
    """Return what training would have given if the trial, which may have been stopped early, had final tasks.

    Args:
        recipe: Recipe of the trial with the final tasks.
        checkpoint: Its last checkpoint.
        after: Report of the final tasks.
    """
    tasks, start = _encoded(recipe, build_method(recipe, checkpoint))
    before, state = evaluate(tasks, start), read_state(checkpoint)
    step = state["progress"]["step"]
    best_step, score = Selection.read(recipe.evaluation, state).kept(step)
    return {
        "before": dict(before),
        "baseline": dict(whitened(recipe, tasks, start)),
        "after": dict(after),
        "changes": before.changes(after, tasks),
        "steps": step,
        "best_step": best_step,
        "best_score": score,
        "skipped": {},
    }
