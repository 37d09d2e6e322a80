"""Location of the results of a job that runs in Ray's copy of its working directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from multicse.commands import evaluate
from multicse.commands.cli import parse
from multicse.pipelines import simcse
from multicse.trainers.engine.checks import check_recipe
from multicse.trainers.engine.launch import resolve
from multicse.trainers.engine.mlflow_server import resolve_uri
from multicse.trainers.jobs import kept, results_in, shown
from multicse.trainers.recipe import Recipe


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder like the one in which a job with ``--working-dir`` starts, and an empty home."""
    copy = tmp_path / "session" / "runtime_resources" / "working_dir_files" / "_ray_pkg_0123456789abcdef"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("MLFLOW_TRACKING_URI", "MULTICSE_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    return copy


@pytest.mark.parametrize(
    ("environment", "changes", "output", "database", "storage"),
    [
        ({}, {}, "home/multicse/runs/demo", "home/multicse/mlflow.db", None),
        ({}, {"run.output_dir": "/data/run"}, "/data/run", "home/multicse/mlflow.db", None),
        ({"MULTICSE_STORAGE": "/data"}, {}, "/data/runs/demo", "/data/mlflow.db", "/data"),
        ({"MULTICSE_STORAGE": "~/kept"}, {}, "home/kept/runs/demo", "home/kept/mlflow.db", "home/kept"),
        ({"MULTICSE_STORAGE": "file:///data"}, {}, "/data/runs/demo", "/data/mlflow.db", "file:///data"),
        ({"MULTICSE_STORAGE": "/data"}, {"run.storage": "/other"}, "/other/runs/demo", "/other/mlflow.db", "/other"),
        ({"MULTICSE_STORAGE": "s3://b"}, {}, "home/multicse/runs/demo", "home/multicse/mlflow.db", "s3://b"),
    ],
)
def test_a_run_leaves_nothing_in_the_copy(
    recipe: Recipe,
    job: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    changes: dict[str, Any],
    output: str,
    database: str,
    storage: str | None,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    run = resolve(recipe.changed({"run.output_dir": "runs/demo", "run.tracking_uri": None, **changes})).run
    assert (run.output_dir, run.tracking_uri) == (str(tmp_path / output), f"sqlite:///{tmp_path / database}")
    assert run.storage == (storage if storage is None or "://" in storage else str(tmp_path / storage))


def test_other_paths_are_not_redirected(recipe: Recipe, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(recipe.replace("run.tracking_uri", "http://host:5000")).run.tracking_uri == "http://host:5000"
    monkeypatch.chdir(tmp_path)
    assert kept(Path("runs/demo")) == Path("runs/demo"), "not in a copy"


def test_the_first_and_last_lines_name_the_folder(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with results_in(tmp_path / "run"):
        print("body")
    first, body, last = capsys.readouterr().out.splitlines()
    assert (
        body == "body" and str(tmp_path / "run") in first and "MULTICSE_STORAGE" in first and str(tmp_path / "run") in last
    )
    monkeypatch.chdir(tmp_path)
    with results_in(tmp_path / "run"):
        print("body")
    assert capsys.readouterr().out == "body\n", "outside a copy nothing is printed"


def test_paths_in_the_current_folder_are_printed_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for place, printed in {
        tmp_path / "here" / "runs" / "demo": "runs/demo",
        Path("runs"): "runs",
        tmp_path / "here": ".",
        tmp_path / "here2": str(tmp_path / "here2"),
        Path("../other"): "../other",
    }.items():
        assert shown(place) == shown(str(place)) == printed


def test_the_recipe_of_a_job_can_be_run_again_in_a_clone(recipe: Recipe, job: Path) -> None:
    """After the copy is deleted, shards and encoder are found in the current folder."""
    tasks = ("retrieval:runs/offline/emoji-val?k=5",)
    (job / "models").mkdir()
    of_job = recipe.changed({"streams.text.shards": "runs/offline/text", "evaluation.final": tasks})
    written = resolve(of_job.replace("encoder.path", "models")).to_json()
    assert json.loads(written)["streams"]["text"]["shards"] == f"{job}/runs/offline/text"
    assert Recipe.from_json(written).to_json() == written, "the copy still exists"
    shutil.rmtree(job)
    again = Recipe.from_json(written)
    assert (again.streams["text"].shards, again.evaluation.final) == ("runs/offline/text", tasks)
    assert again.flat()["encoder.path"] == "models" and again.identity() == Recipe.from_json(written).identity()


def test_evaluations(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = parse(simcse.RECIPES, "", ["smoke"]).flat()["encoder.path"]
    assert evaluate.main(["--model", encoder, "--tasks", "lee", "--json", "out/scores.json", "--device", "cpu"]) == 0
    home = tmp_path / "home/multicse"
    assert "lee" in json.loads((home / "out/scores.json").read_text())["results"]
    lines = capsys.readouterr().out.splitlines()
    assert str(home) in lines[0] and str(home) in lines[-1]
    assert resolve_uri() == f"sqlite:///{home}/mlflow.db", "of --experiment"


@pytest.mark.parametrize(
    ("ignore", "file", "changes"),
    [
        ("/encoders/\n", ".gitignore", {"encoder.path": "encoders/mine"}),
        ("sets/*.tsv\n", ".rayignore", {"evaluation.watch": ("pairs:sets/mine.tsv",)}),
        ("wiki\n", "shards/.gitignore", {"streams.text.shards": "shards/wiki"}),
    ],
)
def test_files_that_ray_omits_from_a_job_are_named(
    tmp_path: Path, job: Path, recipe: Recipe, ignore: str, file: str, changes: dict[str, Any]
) -> None:
    """Ray's own code packs and unpacks the folder, and does not report omitted files."""
    from ray._private.runtime_env.packaging import create_package, unzip_package

    folder, package = tmp_path / "folder", tmp_path / "package.zip"
    for name in ("encoders/mine/config.json", "sets/mine.tsv", "shards/wiki/a.tar", "sent/config.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (folder / file).write_text(ignore)
    create_package(str(folder), package, include_gitignore=True)
    unzip_package(str(package), str(job), remove_top_level_directory=False, unlink_zip=False)
    assert (job / "sent" / "config.json").exists()
    (setting,) = changes
    with pytest.raises(ValueError, match=rf"^{setting}=.* is listed in {file}, so `ray job submit --working-dir` did not"):
        check_recipe(resolve(recipe.changed(changes)))
    with pytest.raises(ValueError, match=r"^encoder.path: 'absent'"):
        check_recipe(recipe.replace("encoder.path", "absent"))
