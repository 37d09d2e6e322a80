"""Complete runs through Ray Train, and what the driver shares with its workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from multicse.data.errors import DataError
from multicse.data.shards import ShardSet
from multicse.data.streams.base import StreamConfig
from multicse.trainers.engine.launch import run_recipe
from multicse.trainers.engine.progress import Board
from multicse.trainers.engine.ray_start import in_background, to_foreground
from multicse.trainers.engine.workers import LostWorker, _trainer_class, _worker_error
from multicse.trainers.recipe import Recipe
from tests.conftest import ROOT
from tests.worlds import add, journal, text_only, write_text


def steps_of(run: Path, metric: str) -> list[int]:
    return [int(line["step"]) for line in journal(run) if metric in line.get("metrics", {})]  # type: ignore[call-overload, operator]


def test_errors_and_losses_of_workers_are_reported() -> None:
    class Report(Exception):
        def __init__(self, **failures: Exception) -> None:
            self.worker_failures = failures

    class Raised(Exception):
        _base_exc = OSError("No space left on device")

    lost = RuntimeError("Task was killed due to the node running low on memory.")
    assert _worker_error(Report(first=Raised())) is Raised._base_exc
    found = _worker_error(Report(first=lost))
    assert isinstance(found, LostWorker) and "low on memory" in str(found) and "Run the same command again" in str(found)


@pytest.mark.parametrize("first", ["multicse.pipelines.visualcse", "multicse.trainers.engine.launch"])
def test_threads_of_torch_spin_only_briefly(first: str) -> None:
    """The variable is set before torch loads OpenMP, which prints it, in the driver and in Ray's workers."""
    environment = {"PATH": os.environ["PATH"], "OMP_DISPLAY_ENV": "verbose"}
    command = [sys.executable, "-c", f"import {first}, torch"]
    found = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    if "GOMP_SPINCOUNT" not in found:
        pytest.skip("this torch has no OpenMP of GNU's")
    assert "GOMP_SPINCOUNT = '1000'" in found


NOTE = """
from pathlib import Path

def note(step, metrics, engine):
    with Path({place!r}).open("a") as file:
        print(step, file=file)
"""


@pytest.mark.usefixtures("local_ray")
def test_one_worker_end_to_end(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker has the file of a callback, and the data as the driver opened it: fewer samples than in the folders."""
    from mlflow import MlflowClient
    from sentence_transformers import SentenceTransformer

    opened: list[ShardSet] = []

    def fewer(urls: str) -> ShardSet:
        opened.append(replace(opens(urls), first=32))
        return opened[-1]

    opens = ShardSet.open
    (tmp_path / "notes.py").write_text(NOTE.format(place=str(tmp_path / "told")))
    changes = {"run.max_steps": None, "run.epochs": 1.5, "run.callbacks": (f"{tmp_path}/notes.py:note",)}
    with monkeypatch.context() as patch:
        patch.setattr(ShardSet, "open", fewer)
        patch.setattr(StreamConfig, "open", lambda self: ShardSet.open(self.shards))
        summary = run_recipe(recipe.changed({"run.num_workers": 1, **changes}))
    assert len(opened) == len(recipe.streams)
    assert {"1", "2", "3"} <= set((tmp_path / "told").read_text().split())
    assert "Starting a training worker ...\n" in capsys.readouterr().err
    run = tmp_path / "run"
    assert json.loads((run / "summary.json").read_text()) == summary
    assert summary["steps"] == 3 and set(summary["after"]) == {"lee"}
    assert steps_of(run, "train/text") == [1, 2, 3]

    client = MlflowClient(summary["tracking_uri"])
    logged = client.get_run(summary["mlflow_run_id"])
    assert logged.info.status == "FINISHED"
    metrics = logged.data.metrics
    for name in ("eval/lee-dev/spearman", "trained/lee/spearman", "train/lr/image", "data/text/wait_share"):
        assert name in metrics
    assert metrics["best/lee-dev/spearman"] == pytest.approx(summary["best_score"])
    # MLflow's page has a section per prefix, in this order: single bars, such as scores of step 0, follow the curves.
    sections = sorted({name.rpartition("/")[0] for name in metrics})
    curves = {name.rpartition("/")[0] for name in metrics if client.get_metric_history(logged.info.run_id, name)[1:]}
    bars = ["trained/lee", "trained_change/lee", "untrained/lee"]
    assert sections[-3:] == bars and set(sections[:-3]) <= curves
    data = {one.dataset.name: one for one in logged.inputs.dataset_inputs}
    assert set(data) == {"text", "image", "audio"}
    assert {one.dataset.digest for one in data.values()} == {one.digest for one in opened}
    description = logged.data.tags["mlflow.note.content"]
    assert description.startswith("| task") and "## " not in description
    assert f"{summary['after']['lee']['spearman']:.2f}" in description
    names = {item.path for item in client.list_artifacts(summary["mlflow_run_id"])}
    assert {"recipe.json", "export"} <= names

    model = SentenceTransformer(summary["export"], device="cpu")
    assert np.isfinite(model.encode(["the cat sees a dog", "a river"])).all()

    # A further run starts from the exported model, and training in this process is the same training.
    further = recipe.replace("encoder.path", summary["export"]).replace("run.max_steps", 1)
    before = run_recipe(further.replace("run.output_dir", str(tmp_path / "further")))["before"]
    assert before["lee"]["spearman"] == pytest.approx(summary["after"]["lee"]["spearman"], abs=1e-3)


@pytest.fixture
def damaged(recipe: Recipe, tmp_path: Path) -> Recipe:
    """Return a recipe whose data has 20 texts and an empty sample."""
    write_text(tmp_path / "text", (20,))
    with tarfile.open(tmp_path / "text" / "text-train-000000.tar", "a") as tar:
        add(tar, "bad.txt", b"")
    return text_only(recipe).replace("streams.text.shards", str(tmp_path / "text"))


@pytest.mark.usefixtures("local_ray")
def test_errors_of_workers_are_raised_on_the_driver(damaged: Recipe) -> None:
    with pytest.raises(DataError, match=r"stream 'text'.*bad.*on_bad_sample"):
        run_recipe(damaged.replace("run.num_workers", 1))


def test_skipped_samples_are_in_the_summary(damaged: Recipe, tmp_path: Path) -> None:
    stream = "streams.text"
    summary = run_recipe(damaged.replace(f"{stream}.on_bad_sample", "skip").replace(f"{stream}.max_skipped_share", 0.1))
    assert summary["skipped"]["text"] >= 1
    report = json.loads((tmp_path / "run" / "skipped.json").read_text())
    assert all("bad" in key for key, _ in report["text"])


def test_export_settings_of_a_run(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A whitened model is exported and evaluated. A failed upload or too little text does not make the run fail."""
    from sentence_transformers import SentenceTransformer

    from multicse.commands.cli import report
    from multicse.trainers.engine import export

    def refuse(*_: object) -> str:
        raise export.HubError("the hub is away")

    monkeypatch.setattr("multicse.trainers.engine.run.push", refuse)
    monkeypatch.setattr(export, "check_hub", lambda *_: None)
    settings = {"run.max_steps": 2, "export.whiten": True, "run.push_to_hub": "me/mine"}
    recipe = recipe.changed(settings)
    summary = run_recipe(recipe)
    model = SentenceTransformer(summary["export"], device="cpu")
    assert type(model[-1]).__name__ == "Dense" and set(summary["whitened"]) == {"lee"}
    assert "whitened" in report(summary) and "hub" not in summary
    assert "hf upload me/mine" in caplog.text

    asked = recipe.replace("export.dimensions", 16).replace("run.output_dir", str(tmp_path / "plain"))
    model = SentenceTransformer(run_recipe(asked)["export"], device="cpu")  # the last LayerNorm leaves 15
    assert type(model[-1]).__name__ == "Pooling" and "export.whiten" in caplog.text


LINE = {"step": 3, "steps": 3, "train/text": 0.5, "time/samples_per_second": 10.0, "left": 0.0}
POLICY = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]


@pytest.mark.usefixtures("local_ray")
def test_a_board_carries_lines_and_stop_requests() -> None:
    import ray

    board = Board()

    @ray.remote(num_cpus=0)
    def work() -> None:
        board.put(LINE)
        while not board.stopping():
            time.sleep(0.1)

    worker = work.remote()
    while (line := board.get()) is None:
        time.sleep(0.1)
    assert line == LINE and not board.stopping()
    board.stop()
    ray.get(worker, timeout=30)
    board.clear()
    assert board.get() is None and not board.stopping()


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="SCHED_BATCH exists on Linux only")
def test_child_processes_inherit_the_background_policy() -> None:
    before = os.sched_getscheduler(0)
    with in_background():
        child = int(subprocess.run(POLICY, capture_output=True, check=True).stdout)
        to_foreground()
        training = os.sched_getscheduler(0)
    assert (child, training, os.sched_getscheduler(0)) == (os.SCHED_BATCH, os.SCHED_OTHER, before)


def test_ray_train_starts_no_actor_for_data_sets() -> None:
    """It would do so in every run; if a later Ray does it in another way, this test says so."""
    from ray.train.torch import TorchTrainer

    ours, theirs = (
        [type(callback).__name__ for callback in trainer(print)._create_default_callbacks()]
        for trainer in (_trainer_class(), TorchTrainer)
    )
    assert "DatasetsCallback" in theirs and ours == [name for name in theirs if name != "DatasetsCallback"]
