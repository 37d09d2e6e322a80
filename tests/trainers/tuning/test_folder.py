"""The folder of a sweep: whose it is, what is refused, and the MLflow runs that belong to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from safetensors.torch import load_file, save_file

from multicse.commands import sweep as pipeline
from multicse.trainers.engine import record
from multicse.trainers.engine.launch import run_recipe
from multicse.trainers.engine.tracking import RunHandle, connect
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning.folder import WRITTEN, claim, refuse_other
from multicse.trainers.tuning.search import Search, end_runs
from multicse.trainers.tuning.sweep import Sweep, plan_of, prepared, records_of
from multicse.trainers.tuning.trial import Plan
from multicse.trainers.tuning.trials import Trial
from tests.worlds import write_encoder, write_text

RATE = "optim.text.lr"
SPACE = {RATE: tune.loguniform(1e-5, 1e-3)}


@pytest.fixture
def made(recipe: Recipe) -> Sweep:
    return Sweep(pipeline="nonling", recipe=prepared(recipe, "none", 1), space=SPACE, trials=2, seeds=(1,), scheduler="none")


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def change_weights(encoder: Path, by: float) -> None:
    weights = load_file(encoder / "model.safetensors")
    save_file({name: tensor + by for name, tensor in weights.items()}, encoder / "model.safetensors", {"format": "pt"})


def refused(made: Sweep, folder: Path, *named: str) -> None:
    """Check that the sweep is refused with a message that contains some texts, and that no file changes."""
    before = files_of(folder)
    with pytest.raises(RecipeError) as error:
        refuse_other(made, folder)
    assert all(text in str(error.value) for text in named), error.value
    assert files_of(folder) == before


@pytest.mark.parametrize("name", WRITTEN)
def test_a_folder_with_files_of_others_is_refused(name: str, made: Sweep, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    refuse_other(made, folder)
    (folder / name).mkdir()
    refused(made, folder, name, "another folder")
    records_of(made, folder / "lost").write(Trial(number=0, trial_id=f"{made.identity()}_00000", changes={}))
    (folder / "lost" / "best.json").write_text("{}")
    refuse_other(made, folder / "lost")  # a sweep of these settings whose record was lost


def test_sweeps_and_runs_refuse_the_folders_of_each_other(made: Sweep, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    record.write_json(tmp_path / "run" / record.NOTE, {"run": "1a2b", "identity": "x"})
    refused(made, tmp_path / "run", "folder of a run")
    claim(made, tmp_path / "sweep")
    before = files_of(tmp_path / "sweep")
    for changes in ({}, {"run.overwrite": True}, {"run.resume": "never"}):
        with pytest.raises(RecipeError, match="folder of a sweep"):
            run_recipe(made.recipe.changed({"run.output_dir": str(tmp_path / "sweep"), **changes}))
    assert files_of(tmp_path / "sweep") == before


@pytest.mark.parametrize("state", ["finished", "unfinished"])
@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"trials": 3}, "--trials: 2 there, 3 here"),
        ({"seeds": (1, 2)}, "--seeds: [1] there, [1, 2] here"),
        ({"searcher": "random"}, "--searcher: optuna there, random here"),
        ({"scheduler": "asha"}, "--scheduler: none there, asha here"),
        ({"space": {RATE: tune.loguniform(1e-5, 1e-2)}}, f"{RATE}: loguniform(1e-05, 0.001) there, loguniform(1e-05, 0.01)"),
        ({"space": {**SPACE, "run.epochs": tune.quniform(1, 3, 0.5)}}, "run.epochs: None there, quniform(1, 3, 0.5) here"),
        ({"method.text.temperature": 0.5}, "method.text.temperature: 0.05 there, 0.5 here"),
    ],
)
def test_another_sweep_is_refused_with_the_differences(
    other: dict[str, Any], named: str, state: str, made: Sweep, tmp_path: Path
) -> None:
    claim(made, tmp_path / "out")
    if state == "finished":
        record.update(tmp_path / "out", {"summary": {}})
    refuse_other(made, tmp_path / "out")
    recipe = made.recipe.changed({path: value for path, value in other.items() if "." in path})
    changed = replace(made, recipe=recipe, **{name: value for name, value in other.items() if "." not in name})
    refused(changed, tmp_path / "out", f"a {state}".replace("a un", "an un"), named)


@pytest.mark.parametrize("storage", [False, True])
@pytest.mark.parametrize("setting", ["streams.text.shards", "evaluation.select", "encoder.path", "space"])
def test_changed_inputs_are_refused(setting: str, storage: bool, made: Sweep, tmp_path: Path) -> None:
    """Also those of a choice, and for another machine, which has the record in the storage only."""
    shards, encoder, dev = tmp_path / "text", tmp_path / "encoder", tmp_path / "dev.tsv"
    write_text(shards)
    for number, folder in enumerate((encoder, tmp_path / "second")):
        write_encoder(folder)
        change_weights(folder, number)
    rows = ["sentence1\tsentence2\tscore", *(f"a cat {i}\ta dog {i}\t{i % 5}" for i in range(9))]
    dev.write_text("\n".join(rows))
    changes = {"streams.text.shards": str(shards), "encoder.path": str(encoder), "evaluation.select": f"pairs:{dev}"}
    changes |= {"run.storage": str(tmp_path / "storage")} if storage else {}
    space = {**SPACE, "encoder.path": tune.choice([str(encoder), str(tmp_path / "second")])}

    def now() -> Sweep:
        recipe = made.recipe.changed(changes)
        recipe.opened.clear()
        return replace(made, recipe=recipe, space=space)

    claim(now(), tmp_path / "out")
    if storage:
        shutil.rmtree(tmp_path / "out")
    refuse_other(now(), tmp_path / "out")
    if setting == "streams.text.shards":
        write_text(shards, (50, 31))
    elif setting == "evaluation.select":
        dev.write_text("\n".join([*rows[:-1], "a cat\ta dog\t5"]))
    else:
        change_weights(encoder if setting == "encoder.path" else tmp_path / "second", 9)
    name = {"evaluation.select": "evaluation task pairs:", "space": f"encoder.path (encoder.path={tmp_path / 'second'})"}
    refused(now(), tmp_path / "out", name.get(setting, setting), "changed", "--output")


def test_a_sweep_keeps_its_id_and_a_copy_gets_another(made: Sweep, tmp_path: Path) -> None:
    first = claim(made, tmp_path / "out")
    assert claim(made, tmp_path / "out") == first != claim(made, tmp_path / "other")
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    assert claim(made, tmp_path / "copy") not in (first, claim(made, tmp_path / "other"))
    (tmp_path / "out").rename(tmp_path / "moved")
    assert claim(made, tmp_path / "moved") == first


def test_a_storage_belongs_to_one_sweep(made: Sweep, tmp_path: Path) -> None:
    made = replace(made, recipe=made.recipe.replace("run.storage", str(tmp_path / "storage")))
    first = claim(made, tmp_path / "out")
    record.take(tmp_path / "out", ["best.json"])
    refused(made, tmp_path / "other", str(tmp_path / "out"), "another run.storage")
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    refused(made, tmp_path / "copy", str(tmp_path / "out"))
    shutil.rmtree(tmp_path / "out")  # with the disk; files in a new folder are not the sweep's
    refuse_other(made, tmp_path / "out")
    assert claim(made, tmp_path / "out") == first and not record.read(tmp_path / "out").get(record.FILES)


@pytest.fixture
def opened(made: Sweep, tmp_path: Path) -> Callable[[str], tuple[RunHandle, Plan]]:
    """Return a driver's MLflow run and plan of the sweep in a folder."""

    def open_in(name: str) -> tuple[RunHandle, Plan]:
        parent = pipeline._open(made, tmp_path / name, (tmp_path / name).exists())
        return parent, plan_of(made, tmp_path / name, parent)

    return open_in


def test_a_sweep_continues_its_own_mlflow_run(made: Sweep, opened: Callable[[str], tuple[RunHandle, Plan]]) -> None:
    """Not the one of an equal sweep in another folder, whichever is the later one; a deleted one is created again."""
    (first, plan), (second, _) = opened("a"), opened("b")
    client = connect(first.uri)
    second.finish("FINISHED")
    assert opened("a")[0].run_id == first.run_id != second.run_id
    assert client.get_run(second.run_id).info.status == "FINISHED"
    changes = {RATE: 1e-4}
    runs = {}
    for number in (0, 1):
        with plan.run(changes, f"x_{number}", 1) as run:
            runs[number] = run.handle.run_id

    client.delete_run(first.run_id)
    client.delete_run(runs[1])
    again, plan = opened("a")
    assert again.run_id not in (first.run_id, second.run_id) and opened("a")[0].run_id == again.run_id
    # An ended trial is nested in the new run; an unfinished one, whose run was deleted, does not wait for the server.
    with plan.run(changes, "x_1", 1) as run:
        assert run.handle.run_id not in runs.values()
    search = object.__new__(Search)
    search.plan, search.parent, search.sweep = plan, again, made
    search.trials = {
        number: Trial(number=number, trial_id=f"x_{number}", changes=changes, status="finished") for number in runs
    }
    end_runs(search)
    nested = client.search_runs(
        [client.get_run(again.run_id).info.experiment_id], f"tags.`mlflow.parentRunId` = '{again.run_id}'"
    )
    assert {run.data.tags["sweep.trial"]: run.info.status for run in nested} == {"x_0": "FINISHED", "x_1": "FINISHED"}
    assert runs[0] in {run.info.run_id for run in nested}
    assert json.loads((Path(plan.folder) / record.NOTE).read_text())["run"] == plan.run_id
