"""Sweeps on a real Ray Tune and a real MLflow: searchers, schedulers, seeds, failures, several workers, what is kept.

Those that take about a minute are marked for `make test-cluster`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune
from safetensors.torch import load_file

from multicse.pipelines import sweep as pipeline
from multicse.trainers.engine.launch import fit
from multicse.trainers.engine.tracking import RunHandle, open_run
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning import sweep as engine
from multicse.trainers.tuning.best import records
from multicse.trainers.tuning.room import needs, room, room_on_cluster
from multicse.trainers.tuning.searchers import number_of
from multicse.trainers.tuning.space import SearchSpace
from multicse.trainers.tuning.sweep import Sweep, assignments, check_sweep, prepared
from multicse.trainers.tuning.trial import Plan
from multicse.trainers.tuning.trials import Trial
from multicse.trainers.tuning.watch import Watch
from tests.small import history, text_only, write_text

pytestmark = pytest.mark.timeout(1800)

SPACE: SearchSpace = {
    "optim.text.lr": tune.loguniform(1e-5, 1e-2),
    "method.text.temperature": tune.uniform(0.05, 0.5),
    "method.image.loss": tune.choice(["supcon", "simclr"]),
}


SIGNED = tune.choice(["https://host/x.tar?X-Amz-Signature=hidden"])
RATES: SearchSpace = {"optim.text.lr": tune.loguniform(1e-5, 1e-2)}
SCORE = "eval/lee-dev/spearman"
KEPT = ("number", "trial_id", "run_id", "pipeline", "changes", "status", "best", "step", "curve")


@pytest.fixture
def small(recipe: Recipe) -> Recipe:
    """The tiny recipe as a sweep takes it, evaluated every step."""
    return prepared(recipe.replace("evaluation.every", 1).replace("run.cpus_per_worker", 0.5), "asha", 1)


def made(recipe: Recipe, space: Mapping[str, Any] = SPACE, **settings: Any) -> Sweep:
    defaults: dict[str, Any] = {"trials": 4, "searcher": "random", "seeds": (1,), "space": "test", "concurrent": 2}
    return Sweep(recipes={"nonling": recipe}, **({"spaces": {"nonling": space}} | defaults | settings))


Carried = tuple[list[Trial], Plan, list[Any], RunHandle]


def carried_out(search: Sweep, folder: Path) -> Carried:
    """Run a sweep on the session's Ray; its records, plan, Tune's trials in the same order, and MLflow run."""
    parent = open_run(search.first.run.tracking_uri, search.experiment, search.name, {})
    plan = engine.plan_of(search, folder, parent)
    watch = Watch(plan, parent, lambda trials: None)
    analysis = engine.run(search, plan, room(search.recipes.values(), 4, 0, search.concurrent).at_once, watch, resume=False)
    return records(analysis, watch), plan, sorted(analysis.trials, key=number_of), parent


def nested(parent: RunHandle) -> dict[str, Any]:
    """The sweep's trials in MLflow, by number and seed."""
    from mlflow import MlflowClient

    found = MlflowClient(parent.uri).search_runs([parent.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.run_id}'")
    return {f"{run.data.tags['sweep.number']}/{run.data.tags['sweep.seed']}": run for run in found}


def test_random_draws_are_those_of_the_seed_and_begin_with_the_recipe(small: Recipe) -> None:
    trials = assignments(made(small, trials=6))
    assert trials == assignments(made(small, trials=6)) and trials != assignments(made(small, trials=6, seeds=(2,)))
    own = {"optim.text.lr": 1e-3, "method.text.temperature": 0.05, "method.image.loss": "supcon"}
    assert trials[0] == {"pipeline": "nonling", "changes": {"nonling": own}}
    grid = {"optim.text.lr": tune.loguniform(1e-5, 1e-2), "method.image.weight": tune.grid_search([1.0, 2.0])}
    drawn = [trial["changes"]["nonling"] for trial in assignments(made(small, grid, trials=401))[1:]]
    rates = np.log10([values["optim.text.lr"] for values in drawn])
    assert rates.min() > -5 and rates.max() < -2 and abs(rates.mean() + 3.5) < 0.15  # uniform in the logarithm
    assert 150 < sum(values["method.image.weight"] == 1.0 for values in drawn) < 250  # 200 expected, sd 10


def test_a_grid_is_every_combination_once(small: Recipe) -> None:
    grid = {"optim.text.lr": tune.grid_search([1e-3, 1e-4]), "method.image.loss": tune.choice(["supcon", "simclr"])}
    trials = assignments(made(small, grid, searcher="grid", trials=None))
    values = [tuple(trial["changes"]["nonling"].values()) for trial in trials]
    # The recipe as it stands is a point of the grid and is not run twice.
    assert values[0] == (1e-3, "supcon")
    assert sorted(values) == [(1e-4, "simclr"), (1e-4, "supcon"), (1e-3, "simclr"), (1e-3, "supcon")]


def test_what_a_killed_driver_leaves_is_told_apart(small: Recipe, tmp_path: Path) -> None:
    """Nothing; trials; and a list of them that is cut off."""
    search = made(small.replace("run.storage", None))
    folder = tmp_path / "tune" / search.name
    folder.mkdir(parents=True)
    assert not engine.exists(search, tmp_path)
    (folder / "experiment_state-2026-01-01_00-00-00.json").write_text('{"trial_data": [')
    with pytest.raises(RecipeError, match=re.escape("2026-01-01_00-00-00.json")):
        engine.exists(search, tmp_path)
    (folder / "experiment_state-2026-01-01_00-00-01.json").write_text('{"trial_data": []}')  # of a later driver
    assert engine.exists(search, tmp_path)


def test_a_node_must_hold_a_process(local_ray: None, small: Recipe) -> None:
    assert room_on_cluster([small.replace("run.cpus_per_worker", 4.0)]).at_once == 1
    with pytest.raises(RecipeError, match=re.escape("run.cpus_per_worker")):
        room_on_cluster([small.replace("run.cpus_per_worker", 5.0)])


def test_a_recipe_that_is_measured_seldom_is_measured_more_often(recipe: Recipe) -> None:
    seldom = recipe.replace("evaluation.every", 100).replace("run.max_steps", 160)
    assert prepared(seldom, "asha", 1).evaluation.every == 16
    assert prepared(seldom, "none", 1).evaluation.every == 100


@pytest.mark.parametrize(
    ("changes", "settings", "named"),
    [
        ({}, {"seeds": (1, 1)}, "--seeds"),
        ({}, {"searcher": "grid", "trials": None}, "optim.text.lr"),
        ({"run.workers": 2}, {"scheduler": "pbt"}, "run.workers"),
        ({}, {"scheduler": "pbt", "seeds": (1, 2)}, "--seeds"),
        ({}, {"scheduler": "pbt", "searcher": "optuna", "spaces": {"nonling": RATES}}, "--searcher"),
        ({}, {"spaces": {"nonling": {"streams.text.batch_size": tune.choice([16, 512])}}}, "streams.text.batch_size"),
        ({}, {"spaces": {"nonling": {"optim.text.learning_rate": tune.uniform(0, 1)}}}, "optim.text.learning_rate"),
        ({"run.storage": "s3://me:hidden@bucket/runs"}, {}, r"run\.storage='s3://\*\*\*@"),
        ({}, {"spaces": {"nonling": {"streams.text.shards": SIGNED}}}, r"streams\.text\.shards=.*\*\*\*"),
    ],
)
def test_sweeps_that_cannot_run(small: Recipe, changes: dict[str, Any], settings: dict[str, Any], named: str) -> None:
    for path, value in changes.items():
        small = small.replace(path, value)
    with pytest.raises(RecipeError, match=named):
        check_sweep(made(small, **settings))


def test_the_arithmetic_of_resources(small: Recipe) -> None:
    one = small.replace("run.cpus_per_worker", 1.0)
    assert room([one], 8, 0).at_once == 8
    assert room([one], 8, 0, most=3).at_once == 3
    assert room([one, one.replace("run.gpus_per_worker", 1)], 8, 2).at_once == 2
    # Two workers of one CPU, each with a reading task of every stream.
    workers = small.replace("run.workers", 2).replace("run.cpus_per_worker", 1.0)
    reading = sum(stream.cpus for stream in small.streams.values())
    assert needs(workers)[0] == pytest.approx(2 * (1 + reading) + 0.01)
    assert room([workers], 2 * needs(workers)[0], 0).at_once == 2
    with pytest.raises(RecipeError, match=re.escape("run.workers")):
        room([workers], 2, 0)


def test_what_decides_a_sweep_is_in_its_name(small: Recipe) -> None:
    name = made(small).name
    assert name == made(small.replace("run.output", "/elsewhere").replace("run.cpus_per_worker", 2), concurrent=1).name
    other = {**SPACE, "optim.text.lr": tune.loguniform(1e-5, 1e-3)}
    others = [made(small, other), made(small, trials=5), made(small, seeds=(2,)), made(small.replace("run.max_steps", 5))]
    assert len({name, *(sweep.name for sweep in others)}) == 5


def test_word_vectors_are_trained_once_for_trials_that_would_get_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multicse.data.word_vectors import is_word_vectors
    from multicse.pipelines import gclsr
    from multicse.trainers.engine.launch import resolve
    from multicse.trainers.tuning.trial import share_vectors

    monkeypatch.chdir(tmp_path)
    recipe = gclsr.smoke().replace("streams.text.shards", write_text(tmp_path / "text"))
    places = []
    for number, (path, value) in enumerate([("run.seed", 1), ("encoder.regions", (1, 2)), ("encoder.dim", 10)]):
        share_vectors(resolve(recipe.replace(path, value).replace("run.output", f"trial-{number}")), tmp_path)
        assert is_word_vectors(tmp_path / f"trial-{number}" / "vectors")
        places.append((tmp_path / f"trial-{number}" / "vectors").resolve())
    assert places[0] == places[1] and len(set(places)) == 2


@pytest.mark.cluster
def test_trials_are_nested_runs_of_their_recipes(local_ray: None, small: Recipe, tmp_path: Path) -> None:
    search = made(small, trials=5)
    trials, plan, _, parent = carried_out(search, tmp_path / "sweep")
    assert [trial.number for trial in trials] == list(range(5)) and not trials[0].changes
    assert trials[0].status == "finished" and trials[0].step == trials[0].steps == 6  # never stopped early
    assert {trial.status for trial in trials[1:]} == {"finished", "stopped"}
    runs = nested(parent)
    assert len(runs) == 5
    for trial, config in zip(trials, assignments(search), strict=True):
        assert trial.changes == {k: v for k, v in config["changes"]["nonling"].items() if small.flat()[k] != v}
        assert trial.step == 6 if trial.status == "finished" else trial.step == 4  # the first evaluation after 60 %
        run = runs[f"{trial.number}/1"]
        assert run.info.run_id == trial.run_id and run.info.status == "FINISHED"
        assert run.data.metrics["best/lee-dev/spearman"] == pytest.approx(trial.best, abs=1e-6)
        assert run.data.tags["mlflow.source.name"] == sys.argv[0] and len(run.inputs.dataset_inputs) == 3
        tags = {f"changed.{path}": str(value) for path, value in trial.changes.items()} | {"sweep.status": trial.status}
        assert tags.items() <= run.data.tags.items() and f"trial {trial.number}" in run.info.run_name
        scores = dict(history(parent.uri, run.info.run_id, SCORE))
        assert {step: scores[step] for step, _ in trial.curve} == pytest.approx(dict(trial.curve), abs=1e-6)
        assert trial.best == pytest.approx(max(scores.values()), abs=1e-6)  # that of step 0 is not in the curve

    # The same scores at the same steps as the recipe run by itself: sharing processes changes nothing.
    alone = plan.recipe({"trial": assignments(search)[2]}).replace("run.output", str(tmp_path / "alone"))
    fit(alone.replace("run.checkpoint_every", None))
    lines = [json.loads(line) for line in (tmp_path / "alone" / "journal.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if line.get("step") and SCORE in line.get("metrics", {})]
    expected = {line["step"]: line["metrics"][SCORE] for line in evaluated}
    assert dict(trials[2].curve) == pytest.approx({step: expected[step] for step, _ in trials[2].curve}, abs=1e-9)


@pytest.mark.cluster
def test_seeds_are_averaged(local_ray: None, small: Recipe, tmp_path: Path) -> None:
    search = made(small, trials=2, scheduler="none", seeds=(1, 2))
    trials, plan, results, parent = carried_out(search, tmp_path / "both")
    both, runs = trials[0], nested(parent)
    assert set(runs) == {"0/1", "0/2", "1/1", "1/2"}
    best = [max(score for _, score in history(parent.uri, runs[f"0/{seed}"].info.run_id, SCORE)) for seed in (1, 2)]
    assert both.seeds == 2 and both.step == both.steps == 12 and both.best == pytest.approx(np.mean(best))
    from multicse.trainers.tuning.best import checkpoints, held_out, mean_scores

    with checkpoints(results[0]) as folders:
        assert list(folders) == [1, 2]
        # The last weights: the best ones may be those of step 0, which all seeds share.
        first, second = (load_file(folder / "method.safetensors") for folder in folders.values())
        assert any(not tensor.equal(second[name]) for name, tensor in first.items() if tensor.is_floating_point())
        scores = held_out(plan.recipe({"trial": assignments(search)[0]}), folders)
    assert mean_scores(scores)["lee"]["spearman"].n == 2


@pytest.mark.cluster
def test_pbt_changes_a_loss_weight_within_a_run(local_ray: None, small: Recipe, tmp_path: Path) -> None:
    """A poor trial goes on with the weights of a good one and another loss weight, from the good one's step."""
    space = {"method.image.weight": tune.loguniform(1e-3, 1e3), "optim.text.lr": tune.loguniform(1e-5, 1e-2)}
    steps = 32  # seven times three trials are looked at: who is the worst of them just then is a matter of timing
    long = small.replace("run.max_steps", steps).replace("evaluation.every", 4)
    search = made(long, space, trials=4, scheduler="pbt")
    trials, _, results, parent = carried_out(search, tmp_path / "sweep")
    assert all(trial.status == "finished" and trial.step == steps for trial in trials)
    before = [config["changes"]["nonling"] for config in assignments(search)]
    after = [dict(result.config["trial"]["changes"]["nonling"]) for result in results]
    moved = [number for number in range(4) if before[number] != after[number]]
    assert moved and 0 not in moved, "no trial was changed, or the recipe as it stands was"
    for number in moved:
        assert 1e-3 <= after[number]["method.image.weight"] <= 1e3
        assert trials[number].changes["method.image.weight"] == after[number]["method.image.weight"]
    from mlflow import MlflowClient

    client = MlflowClient(parent.uri)
    for name, run in nested(parent).items():
        assert (
            run.data.tags.get("changed.method.image.weight") == str(after[int(name[0])]["method.image.weight"])
            or name == "0/1"
        )
        # Of a step that is made again MLflow keeps the first score, Tune the last, and neither another trial's.
        trial, sent = trials[int(name[0])], history(parent.uri, run.info.run_id, SCORE)
        assert trial.best in [pytest.approx(score) for _, score in (*trial.curve, *sent)], "a best score of another trial"
        logged = [metric.step for metric in client.get_metric_history(run.info.run_id, "train/text")]
        assert sorted(logged) == sorted(set(logged)) and max(logged) == steps


@pytest.mark.cluster
def test_a_failed_trial_is_tried_again_then_reported(local_ray: None, small: Recipe, tmp_path: Path) -> None:
    """A learning rate at which the loss is not finite; the other trials go on."""
    space = {"optim.text.lr": tune.grid_search([1e30, 1e-4])}
    search = made(small, space, searcher="grid", trials=None, scheduler="none", retries=1)
    trials, _, _, parent = carried_out(search, tmp_path / "sweep")
    failed = [trial for trial in trials if trial.status == "failed"]
    assert [trial.changes for trial in failed] == [{"optim.text.lr": 1e30}]
    assert "diverged" in (failed[0].error or "")  # the first evaluation finds it
    assert {trial.status for trial in trials if trial not in failed} == {"finished"}
    run = nested(parent)[f"{failed[0].number}/1"]
    assert run.info.status == "FAILED" and "diverged" in run.data.tags["sweep.error"]


@pytest.mark.cluster
def test_trials_of_several_workers_wait_for_room(local_ray: None, small: Recipe, tmp_path: Path) -> None:
    """Tune over Train, more trials than fit: they end, and the best has a checkpoint."""
    from multicse.trainers.tuning.best import checkpoints, held_out

    workers = text_only(small).model_copy(update={"evaluation": small.evaluation})
    workers = workers.replace("run.workers", 2).replace("run.cpus_per_worker", 1.0).replace("streams.text.cpus", 0.1)
    rates = {"optim.text.lr": tune.grid_search([workers.optim["text"].lr, 1e-9])}
    search = made(workers, rates, searcher="grid", trials=None, concurrent=None)
    assert room(search.recipes.values(), 4, 0).at_once == 1
    trials, plan, results, parent = carried_out(search, tmp_path / "sweep")
    assert [trial.status in ("finished", "stopped") for trial in trials] == [True] * 2
    assert trials[0].status == "finished" and trials[0].best is not None
    with checkpoints(results[0]) as folders:
        assert held_out(plan.recipe({"trial": assignments(search)[0]}), folders)[0]["lee"]["spearman"] is not None
    assert all(run.info.status == "FINISHED" for run in nested(parent).values())


@pytest.mark.cluster
def test_two_methods_at_once_from_the_command_line(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Search, figures, the best recipe and model, held-out scores; the best recipe runs by itself."""
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    command = ["visualcse", "simcse", "--recipe", "smoke", "--trials", "4", "--searcher", "optuna", "--output", "out"]
    command += ["--run.tracking_uri", uri, "--run.cpus_per_worker", "1", "--run.max_steps", "3"]
    assert pipeline.main(command) == 0
    assert " at a time" in capsys.readouterr().out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    trials = json.loads((tmp_path / "out" / "trials.json").read_text())
    assert len(trials) == 4 and {trial["pipeline"] for trial in trials} == {"visualcse", "simcse"}
    assert [trial["changes"] for trial in trials[:2]] == [{}, {}]
    best, plain = summary["best"], summary["as_it_stands"]
    assert best["score"] == max(trial["best"] for trial in trials) >= plain["score"]
    assert set(summary["held_out"]) == {"best", "as it stands"} and "lee" in summary["held_out"]["best"]
    client = MlflowClient(uri)
    folders = [file.path for file in client.list_artifacts(summary["mlflow_run_id"])]
    assert {"figures", "best.json", "trials.json", "summary.json", "export"} <= set(folders)
    name, alias = summary["model"].removeprefix("models:/").split("@")
    version = client.get_model_version_by_alias(name, alias)
    assert version.run_id == summary["mlflow_run_id"]
    sweep = client.get_run(summary["mlflow_run_id"])
    assert sweep.data.metrics["best/lee-dev/spearman"] == pytest.approx(best["score"], abs=1e-6)
    assert "| before" in version.description == sweep.data.tags["mlflow.note.content"]

    recipe = Recipe.from_json(Path(summary["recipe"]).read_text())
    again = fit(recipe.replace("run.output", "again").replace("run.workers", 0).replace("run.threads", 1))
    assert again["best_score"] >= best["score"] - 1e-6  # more where the trial was stopped early
    if trials[best["trial"]]["status"] == "finished":
        assert again["best_score"] == pytest.approx(best["score"], abs=1e-6)
        assert again["after"]["lee"]["spearman"] == pytest.approx(
            summary["held_out"]["best"]["lee"]["spearman"][0], abs=1e-6
        )

    assert pipeline.main(command) == 0 and "has ended" in capsys.readouterr().out
    (tmp_path / "out" / "summary.json").unlink()
    assert pipeline.main(command) == 0  # its trials have ended: only the conclusion is drawn again
    resumed = json.loads((tmp_path / "out" / "trials.json").read_text())
    for before_it, after_it in zip(trials, resumed, strict=True):
        assert {key: before_it[key] for key in KEPT} == {key: after_it[key] for key in KEPT}
