"""What is left of a sweep: records of all trials, and the best one as a recipe, a model and its held-out scores."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ray import tune

from multicse.evaluation import statistics
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import Encoded, Task, encode_once, evaluate
from multicse.trainers.engine.checkpoint import AVERAGE, BEST, METHOD, Store, build_method, load_method, module_encoder
from multicse.trainers.engine.launch import deliver
from multicse.trainers.engine.text_fit import whitened
from multicse.trainers.engine.tracking import RunHandle
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe
from multicse.trainers.tuning.trial import SEEDS, Plan, curve_of, run_folder
from multicse.trainers.tuning.trials import Trial
from multicse.trainers.tuning.watch import Watch

Scores = dict[str, dict[str, float]]


def records(analysis: tune.ExperimentAnalysis, watch: Watch) -> list[Trial]:
    """Return the trials of a sweep that ended or was interrupted, with their learning curves."""
    curves = {trial.trial_id: tuple(curve_of(trial.last_result or {}).items()) for trial in analysis.trials}
    return [replace(record, curve=curves[record.trial_id]) for record in watch.records(analysis.trials)]


@contextlib.contextmanager
def checkpoints(trial: tune.experiment.Trial) -> Iterator[dict[int, Path]]:
    """Folders with the weights that one of Tune's trials chose, by seed. Raises ValueError for one without a checkpoint."""
    checkpoint, place = trial.checkpoint, trial.last_result.get("checkpoint_path")
    with contextlib.ExitStack() as stack:
        if checkpoint is not None:
            folder = Path(stack.enter_context(checkpoint.as_directory()))
        else:  # of a trial of workers that was stopped early
            local = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            store = None if place is None else Store(place, local)
            found = None if store is None else store.newest()
            if found is None:
                raise ValueError("the trial has no checkpoint, so there is no model of it")
            folder = found
        last = json.loads((folder / "recipe.json").read_text())["run"]["seed"]
        earlier = {int(path.name): path for path in sorted((folder / SEEDS).glob("*"))}
        yield {**earlier, int(last): folder}


def held_out(recipe: Recipe, folders: Mapping[int, Path]) -> list[Scores]:
    """The final tasks of a recipe, once for the weights of every seed.

    recipe: of now. That in a checkpoint names places of the node that wrote it.
    """
    return [evaluate(*_encoded(recipe, load_method(folder, recipe))) for folder in folders.values()]


def _encoded(recipe: Recipe, method: Method) -> tuple[list[Task], Encoded]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tasks = make_tasks(recipe.evaluation.final, recipe.evaluation.data)
    return tasks, encode_once(tasks, module_encoder(method.to(device).eval(), device))


def mean_scores(scores: Sequence[Scores]) -> dict[str, dict[str, statistics.Summary]]:
    """Task -> metric -> mean and sample standard deviation over seeds."""
    return {
        task: {
            metric: statistics.summary([one[task][metric] for one in scores])
            for metric, value in metrics.items()
            if isinstance(value, float)
        }
        for task, metrics in scores[0].items()
    }


def deliver_best(
    plan: Plan,
    trial: Trial,
    ended: tune.experiment.Trial,
    parent: RunHandle,
    output: Path,
    model: str,
) -> tuple[dict[str, Any], list[Scores]]:
    """Export, card and figures of the best trial's model (of several seeds the first's), and its held-out scores of every
    seed. Returns what `multicse.trainers.engine.launch.deliver` does.

    ended: the trial as Tune has it. model: the name under which `RunHandle.finish` registers it.
    """
    for name in (METHOD, BEST, AVERAGE):  # of a best trial before; nothing else of the folder is ours to remove
        (output / "checkpoint" / name).unlink(missing_ok=True)
    with checkpoints(ended) as folders:
        seed, folder = next(iter(folders.items()))
        shutil.copytree(folder, output / "checkpoint", dirs_exist_ok=True)
        trained = run_folder(plan, trial.trial_id, seed)
        recipe = plan.recipe(ended.config).replace("run.seed", seed).replace("run.output", str(output))
        recipe = recipe.replace("run.register_as", model)
        if (trained / "vectors").exists():  # word vectors that the sweep trained
            shutil.copytree(trained / "vectors", output / "vectors", dirs_exist_ok=True)
        for place in (output, output / "checkpoint"):
            (place / "recipe.json").write_text(recipe.to_json())
        if (folder / "journal.jsonl").exists():
            shutil.copy(folder / "journal.jsonl", output)
        after = held_out(recipe, folders)
        tasks, start = _encoded(recipe, build_method(recipe, output / "checkpoint"))
        samples = trial.steps * recipe.streams[recipe.lead].batch_size * recipe.run.accumulation
        outcome = {
            "before": evaluate(tasks, start),
            "baseline": whitened(recipe, tasks, start, samples),
            "after": after[0],
            "steps": trial.step,
            "best_step": best_step(trial),
            "best_score": trial.best,
            "skipped": {},
            "skips": {},
        }
        return deliver(recipe, parent, outcome, output / "checkpoint", output), after


def best_step(trial: Trial) -> int:
    """The step of a trial's highest score."""
    return max(trial.points, key=lambda point: point[1], default=(0, 0.0))[0]
