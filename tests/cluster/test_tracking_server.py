"""A real MLflow server that is killed in the middle of a run, and comes back."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.servers import MLflowServer
from trainers.engine.tracker import Tracker
from trainers.engine.tracking import open_run

pytestmark = pytest.mark.cluster


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MLflowServer]:
    one = MLflowServer(tmp_path)
    one.start()
    try:
        yield one
    finally:
        one.kill()


def histories(uri: str, run_id: str) -> dict[str, list[tuple[int, float]]]:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    return {
        key: sorted((metric.step, metric.value) for metric in client.get_metric_history(run_id, key))
        for key in client.get_run(run_id).data.metrics
    }


def test_a_server_that_dies_mid_run_loses_nothing(
    server: MLflowServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps before, during and after its absence, a restart of the worker meanwhile, an upload and the run's end."""
    run = open_run(server.uri, "paper", "survivor", {f"p{i}": i for i in range(120)})
    path = tmp_path / "run" / "journal.jsonl"

    tracker = Tracker(path, server.uri, run.run_id, system_every=0)
    for step in range(20):
        tracker.log(step, {"train/text": step / 10, "train/lr/text": 1e-5})
    deadline = time.monotonic() + 60
    while len(histories(server.uri, run.run_id).get("train/text", [])) < 20 and time.monotonic() < deadline:
        time.sleep(0.3)

    server.kill()
    with caplog.at_level(logging.WARNING, "trainers.engine"):
        began = time.monotonic()
        for step in range(20, 40):
            tracker.log(step, {"train/text": step / 10, "train/lr/text": 1e-5})
        assert time.monotonic() - began < 2, "training waited for the server"
        tracker.close(timeout=60)
        # The worker is restarted from its checkpoint at step 30 while the server is still away.
        with Tracker(path, server.uri, run.run_id, system_every=0) as again:
            for step in range(31, 50):
                again.log(step, {"train/text": step / 10, "train/lr/text": 1e-5})
        assert not run.drain(path, timeout=2)
        (tmp_path / "result.txt").write_text("the result")
        run.log_artifact(tmp_path / "result.txt")
        run.finish()
    assert "does not answer" in caplog.text and f"python pipelines/track.py sync {path}" in caplog.text

    server.start()
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(root / "pipelines" / "track.py"), "sync", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr

    from mlflow import MlflowClient

    assert histories(server.uri, run.run_id) == {
        "train/text": [(step, step / 10) for step in range(50)],
        "train/lr/text": [(step, 1e-5) for step in range(50)],
    }
    found = MlflowClient(server.uri).get_run(run.run_id)
    assert found.info.status == "FINISHED" and len(found.data.params) == 120
    client = MlflowClient(server.uri)
    got = client.download_artifacts(run.run_id, "result.txt", str(tmp_path / "run"))
    assert Path(got).read_text() == "the result"


def test_a_server_that_comes_back_is_noticed(server: MLflowServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The thread goes on by itself, and a loss that is not a number travels over HTTP too."""
    run = open_run(server.uri, "paper", "patient", {})
    caplog.set_level(logging.WARNING, "trainers.engine")
    with Tracker(tmp_path / "j.jsonl", server.uri, run.run_id, system_every=0.5) as tracker:
        tracker.log(0, {"loss": 1.0})
        server.kill()
        tracker.log(1, {"loss": float("inf")})
        deadline = time.monotonic() + 60
        while "does not answer" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.2)
        server.start()
        tracker.log(2, {"loss": 2.0})
        while "is back" not in caplog.text and time.monotonic() < deadline + 120:
            time.sleep(0.2)
        assert "is back" in caplog.text
    found = histories(server.uri, run.run_id)
    assert [step for step, _ in found["loss"]] == [0, 1, 2]
    assert found["loss"][0] == (0, 1.0) and found["loss"][2] == (2, 2.0) and found["loss"][1][1] > 1e300
    seconds = [step for step, _ in found["system/cpu_utilization_percentage"]]
    assert len(seconds) == len(set(seconds)) >= 3
