"""A sweep resumes after an interrupt: finished trials are kept, none is repeated, the best is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.cluster.servers import kill_families
from tests.conftest import ROOT

IN_PROCESS = "--run.num_workers 0"
"""A setting of undisturbed sweeps, which changes no result and saves the training workers."""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def here() -> dict[str, str]:
    """Return the environment of a driver on this machine."""
    return {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "MULTICSE_STORAGE")}


@dataclass
class Sweep:
    """Sweep of trials of ten steps, and its files."""

    output: Path
    uri: str
    words: str
    env: Mapping[str, str] = field(default_factory=here)
    python: str = sys.executable

    def start(self) -> subprocess.Popen[bytes]:
        command = [self.python, "pipelines/sweep.py", *f"visualcse --recipe smoke {self.words}".split()]
        command += ["--run.max_steps", "10", "--run.logging_steps", "1"]
        command += ["--output", str(self.output), "--run.tracking_uri", self.uri]
        with open(self.log, "ab") as log:  # not a pipe, which Ray's processes would keep open
            return subprocess.Popen(command, cwd=ROOT, env=dict(self.env), stdout=log, stderr=subprocess.STDOUT)

    def end(self, driver: subprocess.Popen[bytes], code: int = 0) -> None:
        try:
            driver.wait(1200)
        except subprocess.TimeoutExpired:
            kill(driver)
        assert driver.returncode == code, self.text()

    @property
    def log(self) -> Path:
        return self.output.with_name(f"{self.output.name}.log")

    def text(self) -> str:
        return self.log.read_text()[-4000:] if self.log.exists() else ""

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.output / "summary.json").read_text()))

    @property
    def trials(self) -> list[dict[str, Any]]:
        return list(json.loads((self.output / "trials.json").read_text()))

    def runs(self) -> dict[str, Any]:
        """Return the MLflow runs of all trials by trial ID, also while the sweep is running."""
        client = MlflowClient(self.uri)
        experiment = client.get_experiment_by_name("visualcse")
        runs = client.search_runs([experiment.experiment_id], "tags.`sweep.trial` LIKE '%'")
        found = {run.data.tags["sweep.trial"]: run for run in runs}
        assert len(found) == len(runs), "a trial has two runs"
        return found

    def histories(self) -> dict[str, list[tuple[int, int, float]]]:
        """Return step, time and loss by trial ID."""
        client = MlflowClient(self.uri)
        found = {trial: client.get_metric_history(run.info.run_id, "train/text") for trial, run in self.runs().items()}
        return {trial: sorted((one.step, one.timestamp, one.value) for one in metrics) for trial, metrics in found.items()}


def kill(driver: subprocess.Popen[bytes]) -> None:
    """Kill a driver that is running, and its Ray, like the failure of a machine."""
    if driver.poll() is None:
        kill_families([driver.pid])
        driver.wait(30)


def finished(output: Path) -> set[str]:
    """Return the IDs of the finished trials while the sweep is running."""
    records = [json.loads(file.read_text()) for file in (output / "trials").glob("*.json")]
    return {record["trial_id"] for record in records if record["status"] == "finished"}


def test_a_sweep_resumes(python: str, tmp_path: Path) -> None:
    """The same command resumes a sweep after Ctrl-C; in test_sweep_nodes.py all processes are killed.

    There is no early stopping, so that results are predictable, and one trial at a time, so that Optuna's proposals do not
    depend on timing.
    """
    words = "--trials 2 --scheduler none --evaluation.eval_steps 2 --concurrent 1"
    whole = Sweep(tmp_path / "whole", f"sqlite:///{tmp_path / 'whole'}.db", f"{words} {IN_PROCESS}", python=python)
    whole.end(whole.start())
    sweep = Sweep(tmp_path / "sweep", f"sqlite:///{tmp_path / 'mlflow'}.db", words)
    driver, deadline = sweep.start(), time.time() + 900
    try:
        while not finished(sweep.output) and driver.poll() is None and time.time() < deadline:
            time.sleep(0.2)
        assert driver.poll() is None, sweep.text()
        known = {trial: points for trial, points in sweep.histories().items() if trial in finished(sweep.output)}
        driver.send_signal(signal.SIGINT)
        sweep.end(driver, code=130)
        assert "the same command resumes the sweep" in sweep.text()
    finally:
        kill(driver)
    assert len(known) == 1
    sweep.end(sweep.start())

    runs, histories, trials, others = sweep.runs(), sweep.histories(), sweep.trials, whole.trials
    assert MlflowClient(sweep.uri).get_run(sweep.summary["mlflow_run_id"]).info.status == "FINISHED"
    assert {trial: histories[trial] for trial in known} == known, "trained again: values or times have changed"
    assert [run.data.tags["sweep.status"] for run in runs.values()] == ["finished"] * 2
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for points in histories.values():  # every step once, also in interrupted trials
        assert [step for step, _, _ in points] == list(range(1, 11))
    assert [trial["changes"] for trial in trials] == [trial["changes"] for trial in others]
    assert [trial["best"] for trial in trials] == pytest.approx([trial["best"] for trial in others], abs=1e-9)
    assert [trial["curve"] for trial in trials] == [trial["curve"] for trial in others]
    for key in ("trial", "changes", "score"):
        assert sweep.summary["best"][key] == whole.summary["best"][key]
    assert sweep.summary["held_out"] == whole.summary["held_out"]
