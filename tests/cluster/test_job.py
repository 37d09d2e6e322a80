"""As a user of a cluster does it: `ray start --head`, `ray job submit`, a worker that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.servers import RAY, RayHead

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture
def head() -> Iterator[dict[str, str]]:
    """A head node of our own on loopback; stopped by its process ids, so that no other Ray of the machine is hurt."""
    pytest.importorskip("ray.dashboard.modules.job", reason="ray[default] is not installed (pip install -e '.[cluster]')")
    one = RayHead()
    try:
        one.start()
        yield one.env_for_jobs
    finally:
        one.kill()


def test_submitted_job_succeeds_with_its_run(head: dict[str, str], tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    output = tmp_path / "run"
    command = [RAY, "job", "submit", "--working-dir", ".", "--", sys.executable, "pipelines/visualcse.py", "smoke"]
    command += ["--run.output", str(output), "--run.tracking-uri", uri]
    done = subprocess.run(command, cwd=ROOT, env=head, capture_output=True, text=True, timeout=420)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "succeeded" in done.stdout.lower()
    summary = json.loads((output / "summary.json").read_text())
    run = MlflowClient(uri).get_run(summary["mlflow_run_id"])
    assert run.info.status == "FINISHED" and "train/image" in run.data.metrics
    assert (output / "export" / "model.safetensors").exists()


def test_a_killed_worker_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """SIGKILL in the middle: the run ends, and every step is in the log exactly once."""
    from mlflow import MlflowClient

    uri, output = f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "run"
    command = [sys.executable, "pipelines/visualcse.py", "smoke", "--run.output", str(output), "--run.tracking-uri", uri]
    command += ["--run.max-failures", "2", "--run.max-steps", "60", "--evaluation.every", "10", "--run.log-every", "1"]
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    driver = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        kill_a_worker(driver, output, after_step=25)
        text, _ = driver.communicate(timeout=400)
    finally:
        driver.kill()
    assert driver.returncode == 0, text[-3000:]
    summary = json.loads((output / "summary.json").read_text())
    assert summary["steps"] == 60
    history = MlflowClient(uri).get_metric_history(summary["mlflow_run_id"], "train/text")
    assert sorted(m.step for m in history) == list(range(1, 61))


def kill_a_worker(driver: subprocess.Popen[str], output: Path, after_step: int) -> None:
    """SIGKILL the training worker of `driver` once its journal has passed a step."""
    journal, deadline = output / "journal.jsonl", time.time() + 300
    while time.time() < deadline and driver.poll() is None:
        lines = journal.read_text().splitlines() if journal.exists() else []
        if any(f'"step": {after_step}' in line for line in lines):
            break
        time.sleep(0.1)
    assert driver.poll() is None, "the run ended before its worker could be killed"
    family = psutil.Process(driver.pid).children(recursive=True)
    workers = [p for p in family if "TrainWorker" in " ".join(p.cmdline()) or "TrainWorker" in p.name()]
    assert workers, [p.name() for p in family]
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
