"""A sweep resumes after a kill or an interrupt: finished trials are kept, none is repeated, the best is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def command(output: Path, uri: str) -> list[str]:
    """Return the command for four trials of ten steps. There is no early stopping, so that their results are predictable,
    and one trial at a time, so that Optuna's proposals do not depend on timing."""
    words = "visualcse --recipe smoke --trials 4 --scheduler none --run.max_steps 10 --evaluation.eval_steps 2"
    words += " --concurrent 1"
    places = ["--output", str(output), "--run.tracking_uri", uri, "--run.logging_steps", "1"]
    return [sys.executable, "pipelines/sweep.py", *words.split(), *places]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(arguments, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def runs_of(uri: str, parent: str) -> dict[str, Any]:
    """Return the nested runs of a sweep by trial ID."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_run(parent).info.experiment_id
    runs = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent}'")
    assert len({run.data.tags["sweep.trial"] for run in runs}) == len(runs), "a trial has two runs"
    return {run.data.tags["sweep.trial"]: run for run in runs}


def finished(output: Path, uri: str) -> dict[str, str]:
    """Return the MLflow runs of the finished trials by trial ID while the sweep is running."""
    records = [json.loads(file.read_text()) for file in (output / "trials").glob("*.json")]
    ended = {record["trial_id"] for record in records if record["status"] == "finished"}
    if not ended:
        return {}
    from mlflow import MlflowClient  # before the first run it would create the tables at the same time as the driver

    client = MlflowClient(uri)
    (experiment,) = [found for found in client.search_experiments() if found.name == "visualcse"]
    runs = client.search_runs([experiment.experiment_id], "tags.`sweep.trial` LIKE '%'")
    return {trial: run.info.run_id for run in runs if (trial := run.data.tags["sweep.trial"]) in ended}


def history(uri: str, run_id: str) -> list[tuple[int, int, float]]:
    """Return step, time and value of a run's loss."""
    from mlflow import MlflowClient

    found = MlflowClient(uri).get_metric_history(run_id, "train/text")
    return sorted((metric.step, metric.timestamp, metric.value) for metric in found)


def kill_everything(driver: subprocess.Popen[str]) -> None:
    """Kill the driver, like the failure of a machine; its Ray ends by itself."""
    family = psutil.Process(driver.pid).children(recursive=True)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait(30)
    for process in family:  # the next driver should not share cores with processes that are still ending
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def interrupt(driver: subprocess.Popen[str]) -> None:
    """Send Ctrl-C and check the exit code and message."""
    driver.send_signal(signal.SIGINT)
    text, _ = driver.communicate(timeout=600)
    assert driver.returncode == 130 and "the same command goes on" in text, text[-3000:]


def finish(driver: subprocess.Popen[str]) -> None:
    text, _ = driver.communicate(timeout=600)
    assert driver.returncode == 0, text[-3000:]


def test_a_sweep_resumes(tmp_path: Path) -> None:
    """The same command resumes it after Ctrl-C and after a kill of all processes."""
    from mlflow import MlflowClient

    finish(start(command(tmp_path / "whole", f"sqlite:///{tmp_path / 'whole'}.db")))
    output, uri = tmp_path / "sweep", f"sqlite:///{tmp_path / 'mlflow'}.db"
    ended = dict[str, tuple[str, list[tuple[int, int, float]]]]()
    for enough, stop in ((1, interrupt), (2, kill_everything)):
        driver, deadline = start(command(output, uri)), time.time() + 900
        try:
            while len(finished(output, uri)) < enough and driver.poll() is None and time.time() < deadline:
                time.sleep(0.2)
            assert driver.poll() is None, driver.communicate()[0][-3000:]
            for trial_id, run_id in finished(output, uri).items():
                ended.setdefault(trial_id, (run_id, history(uri, run_id)))
            stop(driver)
        finally:
            if driver.poll() is None:
                kill_everything(driver)
        assert enough <= len(ended) < 4
    finish(start(command(tmp_path / "sweep", uri)))

    summary, expected = (
        json.loads((folder / "summary.json").read_text()) for folder in (tmp_path / "sweep", tmp_path / "whole")
    )
    runs = runs_of(uri, summary["mlflow_run_id"])
    client = MlflowClient(uri)
    assert client.get_run(summary["mlflow_run_id"]).info.status == "FINISHED"
    for trial_id, before in ended.items():  # not trained again: values and times are unchanged
        assert (runs[trial_id].info.run_id, history(uri, runs[trial_id].info.run_id)) == before
    assert [run.data.tags["sweep.status"] for run in runs.values()] == ["finished"] * 4
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for run in runs.values():  # every step once, also in interrupted trials
        assert [step for step, _, _ in history(uri, run.info.run_id)] == list(range(1, 11))

    trials, others = (
        json.loads((folder / "trials.json").read_text()) for folder in (tmp_path / "sweep", tmp_path / "whole")
    )
    assert [trial["changes"] for trial in trials] == [trial["changes"] for trial in others]
    assert [trial["best"] for trial in trials] == pytest.approx([trial["best"] for trial in others], abs=1e-9)
    assert [trial["curve"] for trial in trials] == [trial["curve"] for trial in others]
    for key in ("trial", "changes", "score"):
        assert summary["best"][key] == expected["best"][key]
    assert summary["held_out"] == expected["held_out"]
