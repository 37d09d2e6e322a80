"""A real MLflow server is killed twice during a run and restarted."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from multicse.trainers.engine import record
from multicse.trainers.engine.tracking import Tracker, open_run
from tests.cluster.servers import MLflowServer
from tests.conftest import ROOT
from tests.worlds import history

pytestmark = pytest.mark.cluster


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_every_step_is_recorded_once_after_all_failures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training does not wait for the server. One command sends the rest of the metrics, the summary and the status."""
    from mlflow import MlflowClient

    caplog.set_level(logging.WARNING, "multicse.trainers.engine")
    path = tmp_path / "run" / "journal.jsonl"
    with MLflowServer(tmp_path) as server:
        run = open_run(server.uri, "paper", "survivor", {f"p{i}": i for i in range(120)})
        with Tracker(path, server.uri, run.run_id) as tracker:
            for step in range(20):
                tracker.log(step, {"loss": step / 10, "lr": 1e-3})
            wait(lambda: len(history(server.uri, run.run_id, "lr")) == 20)
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
        assert not run.drain(path, timeout=2)
        run.finish()
        (path.parent / "summary.json").write_text("the result")
        record.update(path.parent, {"ended": time.time()})
        assert f"python pipelines/track.py sync {path}" in caplog.text

        server.start()
        command = [sys.executable, str(ROOT / "pipelines" / "track.py"), "sync", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        client, losses = MlflowClient(server.uri), history(server.uri, run.run_id, "loss")
        assert losses[20][0] == 20 and losses.pop(20)[1] > 1e300  # MLflow's infinity
        assert losses == [(step, step / 10) for step in range(50) if step != 20]
        assert history(server.uri, run.run_id, "lr") == [(step, 1e-3) for step in range(50)]
        assert client.get_run(run.run_id).info.status == "FINISHED" and len(client.get_run(run.run_id).data.params) == 120
        got = client.download_artifacts(run.run_id, "summary.json", str(tmp_path))
        assert Path(got).read_text() == "the result"
