"""Export and held-out scores of a sweep's best trial."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from multicse.evaluation import statistics, tables
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import Encoded, Task, encode_once, evaluate
from multicse.trainers.engine import record
from multicse.trainers.engine.checkpoint import (
    MANIFEST,
    build_method,
    load_method,
    module_encoder,
    read_state,
)
from multicse.trainers.engine.launch import deliver
from multicse.trainers.engine.output import JOURNAL
from multicse.trainers.engine.selection import Selection
from multicse.trainers.engine.text_fit import whitened
from multicse.trainers.engine.tracking import RunHandle
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe
from multicse.trainers.tuning.trial import Plan
from multicse.trainers.tuning.trials import Trial

Scores = dict[str, dict[str, float]]


def checkpoints(plan: Plan, trial: Trial) -> dict[int, Path]:
    """Return the checkpoint folders of a trial by seed; of a stopped trial, only the seeds that were started."""
    recipe = plan.recipe(trial.changes)
    found = {seed: plan.store(recipe, trial.trial_id, seed).newest() for seed in plan.seeds}
    folders = {seed: folder for seed, folder in found.items() if folder is not None}
    if not folders:
        raise ValueError(f"trial {trial.number} has no checkpoint, so its model cannot be exported")
    return folders


def held_out(plan: Plan, trial: Trial) -> list[Scores]:
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


def mean_scores(scores: Sequence[Scores]) -> dict[str, dict[str, statistics.Summary]]:
    """Return task -> metric -> mean and sample standard deviation over seeds; averages over tasks are included as tasks."""
    scores = [one | tables.averages(one) for one in scores]
    return {
        task: {
            metric: statistics.summary([one[task][metric] for one in scores])
            for metric, value in metrics.items()
            if isinstance(value, float)
        }
        for task, metrics in scores[0].items()
    }


def deliver_best(
    plan: Plan, trial: Trial, after: Mapping[str, Any], parent: RunHandle, output: Path, model: str
) -> dict[str, Any]:
    """Write export, card and figures of the best trial, from its first seed, and return the result of `deliver`.

    Args:
        plan: Plan of the sweep.
        trial: The best trial.
        after: Its held-out scores, see `held_out`.
        parent: The sweep's MLflow run.
        output: Folder of the model.
        model: Name under which `RunHandle.finish` registers it.
    """
    seed, folder = next(iter(checkpoints(plan, trial).items()))
    output.mkdir(parents=True, exist_ok=True)
    for name in record.read(output).get(record.FILES, ()):  # from a former best trial; other files of the user are kept
        if name.startswith("checkpoint/"):
            (output / name).unlink(missing_ok=True)
    # The manifest contains the checksum of recipe.json, which is replaced below.
    names = [f"checkpoint/{file.name}" for file in folder.iterdir() if file.name != MANIFEST]
    record.take(output, ["recipe.json", *names])
    shutil.copytree(folder, output / "checkpoint", dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
    vectors = plan.run_folder(trial.trial_id, seed) / "vectors"
    if vectors.exists():  # word vectors that the trial trained
        shutil.copytree(vectors, output / "vectors", dirs_exist_ok=True)
    recipe = plan.recipe(trial.changes).changed({"run.seed": seed, "run.output_dir": str(output), "run.register_as": model})
    for place in (output, output / "checkpoint"):
        (place / "recipe.json").write_text(recipe.to_json())
    if (folder / JOURNAL).exists():
        shutil.copy(folder / JOURNAL, output)
    tasks, start = _encoded(recipe, build_method(recipe, output / "checkpoint"))
    steps = trial.steps // len(plan.seeds)
    samples = steps * recipe.streams[recipe.lead].batch_size * recipe.run.gradient_accumulation_steps
    state = read_state(folder)
    step = state["progress"]["step"]
    outcome = {
        "before": evaluate(tasks, start),
        "baseline": whitened(recipe, tasks, start, samples),
        "after": after,
        "steps": step,
        "best_step": Selection.read(recipe.evaluation, state).kept(step)[0],
        "best_score": trial.best,
        "skipped": {},
        "skips": {},
    }
    return deliver(recipe, parent, outcome, output / "checkpoint", output)
