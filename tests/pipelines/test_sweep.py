"""Test sweeps with Ray Tune and MLflow: seeds, failures, several workers, outputs.

Tests that take about a minute are marked for `make test-cluster`.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune
from safetensors.torch import load_file

from multicse.commands import registry
from multicse.commands import sweep as pipeline
from multicse.evaluation.report import Report
from multicse.evaluation.statistics import Summary
from multicse.trainers.engine.checkpoint import read_state
from multicse.trainers.engine.launch import run_recipe
from multicse.trainers.engine.run import experiment_of
from multicse.trainers.engine.tracking import RunHandle, open_run
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning.best import checkpoints, deliver_best, held_out, mean_scores
from multicse.trainers.tuning.search import Search, run
from multicse.trainers.tuning.sweep import Sweep, at_once, check_sweep, needs, plan_of, prepared, records_of
from multicse.trainers.tuning.trial import metrics_of
from multicse.trainers.tuning.trials import Status, Trial
from tests.conftest import ROOT
from tests.worlds import history, text_only

pytestmark = pytest.mark.timeout(1800)

SPACE = {
    "optim.text.lr": tune.loguniform(1e-5, 1e-2),
    "method.text.temperature": tune.uniform(0.05, 0.5),
    "method.image.loss": tune.choice(["supcon", "simclr"]),
}
SCORE = "eval/lee-dev/spearman"


@pytest.fixture
def small(recipe: Recipe) -> Recipe:
    """Return the tiny recipe, prepared for a sweep and evaluated every step."""
    return prepared(recipe.replace("evaluation.eval_steps", 1).replace("run.cpus_per_worker", 0.5), "asha", 1)


def made(recipe: Recipe, space: Mapping[str, Any] = SPACE, **settings: Any) -> Sweep:
    defaults: dict[str, Any] = {"trials": 4, "searcher": "random", "seeds": (1,), "concurrent": 2, "space": space}
    return Sweep(pipeline="nonling", recipe=recipe, **(defaults | settings))


def trained(sweep: Sweep, folder: Path) -> tuple[list[Trial], Search]:
    """Run a sweep on the session's Ray; return its trials and its search."""
    parent = open_run(sweep.recipe.run.tracking_uri, experiment_of(sweep.recipe), sweep.name, {})
    fitting = at_once(sweep.recipe, 4, 0, sweep.concurrent)
    search = Search(sweep, plan_of(sweep, folder, parent), parent, records_of(sweep, folder), fitting)
    return run(search), search


def nested(parent: RunHandle) -> dict[str, Any]:
    """Return the MLflow runs of the trials by number and seed."""
    from mlflow import MlflowClient

    client = MlflowClient(parent.uri)
    experiment = client.get_run(parent.run_id).info.experiment_id
    found = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent.run_id}'")
    return {f"{run.data.tags['sweep.number']}/{run.data.tags['sweep.seed']}": run for run in found}


def test_a_scheduler_increases_rare_evaluations(recipe: Recipe) -> None:
    seldom = recipe.replace("evaluation.eval_steps", 100).replace("run.max_steps", 160)
    assert prepared(seldom, "asha", 1).evaluation.eval_steps == 16
    assert prepared(seldom, "none", 1).evaluation.eval_steps == 100


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"seeds": (1, 1)}, "--seeds"),
        ({"trials": 0}, "--trials"),
        ({"concurrent": -1}, "--concurrent -1"),
        ({"retries": -1}, "--retries -1"),
        ({"searcher": "grid", "trials": None}, "optim.text.lr"),
        ({"searcher": "grid", "trials": 2, "space": {"optim.text.lr": tune.choice([0.1, 0.2])}}, "--trials 3"),
        ({"searcher": "grid", "trials": 9, "space": {"optim.text.lr": tune.choice([0.1, 0.2])}}, "--trials 3"),
        ({"space": {"streams.text.batch_size": tune.choice([16, 512])}}, "streams.text.batch_size"),
        ({"space": {}}, "search space: it is empty; name at least one setting, or set --trials 1"),
        ({"space": {"encoder.path": tune.choice(["no/such/folder"])}}, "encoder.path='no/such/folder'"),
        ({"space": {"optim.text.learning_rate": tune.uniform(0, 1)}}, "optim.text.learning_rate"),
        ({"space": {"streams.text.shards": tune.choice(["s3://me:hidden@b/x.tar"])}}, r"shards='s3://\*\*\*@b.*password"),
        ({"space": {"streams.text.batch_size": tune.randint(16, 4000)}}, "batch_size=.* samples"),
        ({"space": {"run.seed": tune.choice([1, 2])}}, "the seeds are --seeds"),
    ],
)
def test_sweeps_that_cannot_run(small: Recipe, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        check_sweep(made(small, **settings))


def test_the_arithmetic_of_resources(small: Recipe) -> None:
    one = small.replace("run.cpus_per_worker", 1.0)
    assert at_once(one, 8, 0) == 8 and at_once(one, 8, 0, most=3) == 3
    assert at_once(one.replace("run.gpus_per_worker", 1), 8, 2) == 2
    # Two workers of one CPU, each with a reading task of every stream.
    workers = one.replace("run.num_workers", 2)
    reading = sum(stream.cpus for stream in small.streams.values())
    assert needs(workers)[0] == pytest.approx(2 * (1 + reading) + 0.01)
    assert at_once(workers, 2 * needs(workers)[0], 0) == 2
    with pytest.raises(RecipeError, match=re.escape("run.num_workers")):
        at_once(workers, 2, 0)


def test_the_name_depends_on_settings_that_determine_the_trials(small: Recipe) -> None:
    name = made(small).name
    assert name == made(small.replace("run.output_dir", "/elsewhere").replace("run.cpus_per_worker", 2), concurrent=1).name
    other = {**SPACE, "optim.text.lr": tune.loguniform(1e-5, 1e-3)}
    others = [made(small, other), made(small, trials=5), made(small, seeds=(2,)), made(small.replace("run.max_steps", 5))]
    assert len({name, *(sweep.name for sweep in others)}) == 5


def trial(number: int, score: float | None, status: Status = "finished", **kept: Any) -> Trial:
    changes = {"optim.text.lr": number * 1e-5, "method.image.loss": f"loss{number}"} if number else {}
    return Trial(number=number, trial_id=str(number), changes=changes, status=status, best=score, step=8, steps=8, **kept)


def test_the_final_table_has_the_best_trials_trial_0_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "ROWS", 2)
    trials = [
        trial(0, 40.0),
        trial(1, 44.25),
        trial(2, 42.0, "stopped"),
        trial(3, 41.0),
        trial(4, None, "failed", error="E"),
    ]
    head, _, *lines = pipeline.final_table(trials, "lee-dev/spearman").splitlines()
    assert head.split() == ["trial", "status", "step", "lee-dev/spearman", "text.lr", "image.loss"]
    assert [line.split() for line in lines] == [
        ["1", "finished", "8/8", "44.25", "1e-05", "loss1"],
        ["2", "stopped", "8/8", "42.00", "2e-05", "loss2"],
        ["0", "finished", "8/8", "40.00", "-", "-"],
        ["trial", "4", "failed:", "E"],
    ]
    head, _, *lines = pipeline.final_table([replace(trials[0], seeds=2), *trials[1:]], "lee-dev/spearman").splitlines()
    assert head.split()[3] == "seeds" and [line.split()[3] for line in lines[:2]] == ["2", "1"]


def test_averages_over_tasks_have_a_deviation_over_seeds() -> None:
    seeds = [Report.of({"sts12": {"spearman": first}, "sts13": {"spearman": 50.0}}) for first in (40.0, 44.0)]
    assert mean_scores(seeds)["average of 2"]["spearman"] == pytest.approx((46.0, 2**0.5, 2))


def test_held_out_scores_are_compared_with_the_untrained_and_whitened_encoder() -> None:
    scores = {"lee": {"spearman": Summary(48.0, None, 1)}, "mr": {"accuracy": Summary(70.0, None, 1)}}
    summary = {
        "before": {"lee": {"spearman": 40.0}, "mr": {"accuracy": 60.0}},
        "baseline": {"lee": {"spearman": 44.0}},
        "held_out": {"best": scores, "unchanged": scores},
        "best": {"trial": 3, "score": 50.0, "pipeline": "simcse"},
        "unchanged": {"score": None},
        "trials": dict.fromkeys(("finished", "stopped", "failed"), 1),
        **dict.fromkeys(("metric", "recipe", "export", "model", "mlflow_run_id", "tracking_uri"), "x"),
    }
    lines = [line.split() for line in pipeline._last_words(summary).splitlines()]
    assert ["lee", "spearman", "40.00", "44.00", "48.00", "48.00"] in lines
    assert ["mr", "accuracy", "60.00", "-", "70.00", "70.00"] in lines
    summary["best"] = {"trial": 0, "score": 50.0, "pipeline": "simcse"}  # one column for one model
    lines = [line.split() for line in pipeline._last_words(summary | {"unchanged": {"score": 50.0}}).splitlines()]
    assert ["mr", "accuracy", "60.00", "-", "70.00"] in lines


@pytest.mark.cluster
def test_trials_are_nested_runs_of_their_recipes(local_ray: None, small: Recipe, tmp_path: Path) -> None:
    trials, search = trained(made(small, trials=5), tmp_path / "sweep")
    parent, plan = search.parent, search.plan
    assert [trial.number for trial in trials] == list(range(5)) and not trials[0].changes
    assert trials[0].status == "finished" and trials[0].step == trials[0].steps == 6  # never stopped early
    # ASHA's decisions depend on the order of the trials: it stops none if each is better than its predecessors.
    assert {trial.status for trial in trials[1:]} <= {"finished", "stopped"}
    runs = nested(parent)
    assert len(runs) == 5
    for trial in trials:
        assert trial.step == (6 if trial.status == "finished" else 4)  # the first evaluation after 60 %
        run = runs[f"{trial.number}/1"]
        assert run.data.tags["sweep.trial"] == trial.trial_id and run.info.status == "FINISHED"
        assert run.data.metrics["best/lee-dev/spearman"] == pytest.approx(trial.best, abs=1e-6)
        assert run.data.tags["mlflow.source.name"] == sys.argv[0] and len(run.inputs.dataset_inputs) == 3
        tags = {f"changed.{path}": str(value) for path, value in trial.changes.items()} | {"sweep.status": trial.status}
        assert tags.items() <= run.data.tags.items() and f"trial {trial.number}" in run.info.run_name
        scores = dict(history(parent.uri, run.info.run_id, SCORE))
        assert {step: scores[step] for step, _ in trial.curve} == pytest.approx(dict(trial.curve), abs=1e-6)
        assert trial.best == pytest.approx(max(scores.values()), abs=1e-6)  # the curve does not contain step 0
        reported = metrics_of(checkpoints(plan, trial)[1], small)  # for a driver that is restarted
        assert (reported["step"], reported["score"]) == trial.curve[-1] and reported["best"] == trial.best

    # The same scores at the same steps as the recipe run by itself: sharing processes changes nothing.
    alone = plan.recipe(trials[2].changes).replace("run.output_dir", str(tmp_path / "alone"))
    run_recipe(alone.replace("run.save_steps", None))
    lines = [json.loads(line) for line in (tmp_path / "alone" / "journal.jsonl").read_text().splitlines()]
    expected = {line["step"]: line["metrics"][SCORE] for line in lines if SCORE in line.get("metrics", {})}
    assert dict(trials[2].curve) == pytest.approx({step: expected[step] for step, _ in trials[2].curve}, abs=1e-9)


@pytest.mark.cluster
def test_seeds_are_averaged(local_ray: None, small: Recipe, tmp_path: Path) -> None:
    trials, search = trained(made(small, trials=2, scheduler="none", seeds=(1, 2), concurrent=1), tmp_path / "both")
    both, runs = trials[0], nested(search.parent)
    assert set(runs) == {"0/1", "0/2", "1/1", "1/2"}
    best = [max(score for _, score in history(search.parent.uri, runs[f"0/{seed}"].info.run_id, SCORE)) for seed in (1, 2)]
    assert both.seeds == 2 and both.step == both.steps == 12 and both.best == pytest.approx(np.mean(best))
    folders = checkpoints(search.plan, both)
    assert list(folders) == [1, 2]
    # Compare the last weights: the best weights may be from step 0, which is equal for all seeds.
    first, second = (load_file(folder / "method.safetensors") for folder in folders.values())
    assert any(not tensor.equal(second[name]) for name, tensor in first.items() if tensor.is_floating_point())
    scores = held_out(search.plan, both)
    assert mean_scores(scores)["lee"]["spearman"].n == 2
    result = deliver_best(search.plan, both, scores[0], tmp_path / "best", "multicse-best")
    assert result["steps"] == 6 and result["best_step"] == read_state(folders[1])["selection"]["best_step"] <= 6


@pytest.mark.cluster
def test_a_failed_trial_is_tried_again_then_reported(local_ray: None, small: Recipe, tmp_path: Path) -> None:
    """A trial with a non-finite loss fails; the other trials continue."""
    space = {"optim.text.lr": tune.grid_search([1e30, 1e-4])}
    sweep = made(small, space, searcher="grid", trials=None, scheduler="none", retries=1, concurrent=1)
    trials, search = trained(sweep, tmp_path / "sweep")
    failed = [trial for trial in trials if trial.status == "failed"]
    assert [trial.changes for trial in failed] == [{"optim.text.lr": 1e30}]
    assert "diverged" in (failed[0].error or "")  # the first evaluation finds it
    assert {trial.status for trial in trials if trial not in failed} == {"finished"}
    run = nested(search.parent)[f"{failed[0].number}/1"]
    assert run.info.status == "FAILED" and "diverged" in run.data.tags["sweep.error"]


@pytest.mark.cluster
def test_trials_of_several_workers_wait_for_resources(local_ray: None, small: Recipe, tmp_path: Path) -> None:
    """More trials than fit, each with Ray Train workers: all finish, and the best has a checkpoint."""
    workers = text_only(small).model_copy(update={"evaluation": small.evaluation})
    workers = workers.replace("run.num_workers", 2).replace("run.cpus_per_worker", 1.0).replace("streams.text.cpus", 0.1)
    rates = {"optim.text.lr": tune.grid_search([workers.optim["text"].lr, 1e-9])}
    sweep = made(workers, rates, searcher="grid", trials=None, concurrent=None)
    assert at_once(workers, 4, 0) == 1
    trials, search = trained(sweep, tmp_path / "sweep")
    assert [trial.status in ("finished", "stopped") for trial in trials] == [True] * 2
    assert trials[0].status == "finished" and trials[0].best is not None and len(trials[0].curve) == trials[0].steps
    assert held_out(search.plan, trials[0])[0]["lee"]["spearman"] is not None
    assert all(run.info.status == "FINISHED" for run in nested(search.parent).values())


@pytest.mark.cluster
@pytest.mark.usefixtures("local_ray", "with_shards")
def test_from_the_command_line(
    tracking_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep writes figures, best recipe, model and held-out scores; the best recipe gives its score again."""
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    command = ["visualcse", "--recipe", "smoke", "--trials", "3", "--concurrent", "1", "--output", "out"]
    command += ["--run.tracking_uri", tracking_uri, "--run.cpus_per_worker", "1", "--run.max_steps", "3"]
    assert pipeline.main([command[0], "simcse", *command[1:]]) == 2 and "one pipeline" in capsys.readouterr().err
    former = signal.getsignal(signal.SIGTERM)
    assert pipeline.main(command) == 0
    assert signal.getsignal(signal.SIGTERM) == former
    printed = capsys.readouterr().out
    assert " at a time" in printed and "\ntrials 0/3" in printed and "\ntrials  3 finished" in printed
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    trials = json.loads((tmp_path / "out" / "trials.json").read_text())
    assert len(trials) == 3 and trials[0]["changes"] == {}
    best, plain = summary["best"], summary["unchanged"]
    assert best["score"] == max(trial["best"] for trial in trials) >= plain["score"]
    assert set(summary["held_out"]) == {"best", "unchanged"} and "lee" in summary["held_out"]["best"]
    client = MlflowClient(tracking_uri)
    folders = [file.path for file in client.list_artifacts(summary["mlflow_run_id"])]
    assert {"figures", "best.json", "trials.json", "summary.json", "export"} <= set(folders)
    name, alias = summary["model"].removeprefix("models:/").split("@")
    version = client.get_model_version_by_alias(name, alias)
    assert version.run_id == summary["mlflow_run_id"]
    sweep = client.get_run(summary["mlflow_run_id"])
    assert sweep.data.metrics["best/lee-dev/spearman"] == pytest.approx(best["score"], abs=1e-6)
    assert "| before" in version.description == sweep.data.tags["mlflow.note.content"]

    recipe = Recipe.from_json(Path(summary["recipe"]).read_text())
    again = run_recipe(recipe.replace("run.output_dir", "again").replace("run.num_workers", 0).replace("run.threads", 1))
    assert again["best_score"] >= best["score"] - 1e-6  # more where the trial was stopped early
    if trials[best["trial"]]["status"] == "finished":
        assert again["best_score"] == pytest.approx(best["score"], abs=1e-6)
        held = summary["held_out"]["best"]["lee"]["spearman"][0]
        assert again["after"]["lee"]["spearman"] == pytest.approx(held, abs=1e-6)

    assert pipeline.main(command) == 0 and "this sweep is finished" in capsys.readouterr().out
    (tmp_path / "out" / "summary.json").unlink()
    assert pipeline.main(command) == 0  # all trials are finished: only the results are written again
    assert json.loads((tmp_path / "out" / "trials.json").read_text()) == trials


@pytest.mark.cluster
@pytest.mark.usefixtures("local_ray", "with_shards")
def test_several_seeds_of_one_recipe(
    tracking_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One trial needs no space; the table has mean and deviation of the scores that the recipe has with each seed."""
    monkeypatch.chdir(tmp_path)
    own = (ROOT / "examples/new_method.py").read_text()  # defines no SPACES
    Path("mine.py").write_text(own)
    settings = ["--run.tracking_uri", tracking_uri, "--run.max_steps", "2", "--run.cpus_per_worker", "1"]
    command = ["mine.py", "--recipe", "smoke", "--trials", "1", "--seeds", "3", "5", "--output", "out", *settings]
    assert pipeline.main([*command, "--evaluation.keep", "last"]) == 0
    printed = capsys.readouterr().out
    cell = json.loads((tmp_path / "out" / "summary.json").read_text())["held_out"]["unchanged"]["lee"]["spearman"]
    alone = []
    for seed in (3, 5):
        recipe = registry.load("mine.py").RECIPES["smoke"]().changed({"run.seed": seed, "run.output_dir": f"runs/{seed}"})
        changes = {"run.max_steps": 2, "run.num_workers": 0, "run.threads": 1, "evaluation.keep": "last"}
        alone.append(run_recipe(recipe.changed(changes))["after"]["lee"]["spearman"])
    assert cell == pytest.approx([np.mean(alone), np.std(alone, ddof=1), 2]) and cell[1] > 0
    assert f"{cell[0]:.2f} ± {cell[1]:.2f}" in printed and "none: the unchanged recipe" in printed
