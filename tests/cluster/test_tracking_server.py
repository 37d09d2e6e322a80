"""A real MLflow server is killed and restarted twice during a run."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from multicse.trainers.engine.journal import Journal
from multicse.trainers.engine.tracking import Sender, Tracker, open_run
from tests.cluster.servers import MLflowServer
from tests.conftest import ROOT

pytestmark = pytest.mark.cluster


def histories(uri: str, run_id: str) -> dict[str, list[tuple[int, float]]]:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    return {
        key: sorted((metric.step, metric.value) for metric in client.get_metric_history(run_id, key))
        for key in client.get_run(run_id).data.metrics
    }


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_every_step_is_recorded_once_after_all_failures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """80 steps with two server failures, an incomplete line of a killed process, ten repeated steps and three replays. One
    command sends the rest of the metrics, the summary and the status of the run."""
    from mlflow import MlflowClient

    caplog.set_level(logging.WARNING, "multicse.trainers.engine")
    server, path = MLflowServer(tmp_path), tmp_path / "run" / "journal.jsonl"
    server.start()
    try:
        run = open_run(server.uri, "paper", "survivor", {f"p{i}": i for i in range(120)})
        with Tracker(path, server.uri, run.run_id) as tracker:
            for step in range(20):
                tracker.log(step, {"loss": step / 10, "lr": 1e-3})
            wait(lambda: len(histories(server.uri, run.run_id).get("lr", [])) == 20)
            server.kill()
            began = time.monotonic()
            tracker.log(20, {"loss": math.inf, "lr": 1e-3})
            assert time.monotonic() - began < 20, "training waited for the server"
            wait(lambda: "does not respond" in caplog.text)
            server.start()
            wait(lambda: "responds again" in caplog.text)
            server.kill()
            for step in range(21, 50):
                tracker.log(step, {"loss": step / 10, "lr": 1e-3})
            tracker.close(timeout=0)
        with open(path, "ab") as file:
            file.write(b'{"step": 50, "time": 17')
        with Tracker(path, server.uri, run.run_id) as again:
            for step in range(40, 80):
                again.log(step, {"loss": step / 10, "lr": 1e-3})
        assert not run.drain(path, timeout=2)
        run.finish()
        (path.parent / "summary.json").write_text("the result")
        assert f"python pipelines/track.py sync {path}" in caplog.text

        server.start()
        command = [sys.executable, str(ROOT / "pipelines" / "track.py"), "sync", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        for _ in range(3):
            sender = Sender(Journal(path), server.uri, run.run_id)
            sender._known = {}  # without a query: the server stores equal metrics once
            sender.send()
        client, found = MlflowClient(server.uri), histories(server.uri, run.run_id)
        assert [point for point in found["loss"] if point[0] != 20] == [(n, n / 10) for n in range(80) if n != 20]
        assert dict(found["loss"])[20] > 1e300 and len(found["loss"]) == 80  # MLflow's infinity
        assert found["lr"] == [(step, 1e-3) for step in range(80)]
        assert client.get_run(run.run_id).info.status == "FINISHED" and len(client.get_run(run.run_id).data.params) == 120
        got = client.download_artifacts(run.run_id, "summary.json", str(tmp_path))
        assert Path(got).read_text() == "the result"
    finally:
        server.kill()
