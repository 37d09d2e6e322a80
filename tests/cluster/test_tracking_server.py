"""A real MLflow server that is killed in the middle of a run and comes back, twice."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from multicse.trainers.engine.tracking import Journal, Sender, Tracker, open_run
from tests.cluster.servers import MLflowServer

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


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_server_that_dies_mid_run_loses_nothing(
    server: MLflowServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tracker goes on by itself when the server is back. What it missed at the end, a restart of the worker, an upload
    and the run's end among it, one command brings."""
    caplog.set_level(logging.WARNING, "multicse.trainers.engine")
    run = open_run(server.uri, "paper", "survivor", {f"p{i}": i for i in range(120)})
    path = tmp_path / "run" / "journal.jsonl"
    with Tracker(path, server.uri, run.run_id) as tracker:
        for step in range(20):
            tracker.log(step, {"loss": step / 10})
        wait(lambda: len(histories(server.uri, run.run_id).get("loss", [])) == 20)
        server.kill()
        began = time.monotonic()
        tracker.log(20, {"loss": math.inf})
        assert time.monotonic() - began < 20, "training waited for the server"
        wait(lambda: "does not answer" in caplog.text)
        server.start()
        wait(lambda: "is back" in caplog.text)
        server.kill()
        for step in range(21, 40):
            tracker.log(step, {"loss": step / 10})
    # The worker is restarted from its checkpoint at step 30 while the server is still away.
    with Tracker(path, server.uri, run.run_id) as again:
        for step in range(31, 50):
            again.log(step, {"loss": step / 10})
    assert not run.drain(path, timeout=2)
    run.finish()
    (tmp_path / "run" / "summary.json").write_text("the result")
    assert f"python pipelines/track.py sync {path}" in caplog.text

    server.start()
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(root / "pipelines" / "track.py"), "sync", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

    from mlflow import MlflowClient

    client, found = MlflowClient(server.uri), histories(server.uri, run.run_id)
    finite = [point for point in found["loss"] if point[0] != 20]
    assert finite == [(step, step / 10) for step in range(50) if step != 20]
    assert dict(found["loss"])[20] > 1e300 and len(found["loss"]) == 50  # MLflow's infinity
    assert client.get_run(run.run_id).info.status == "FINISHED" and len(client.get_run(run.run_id).data.params) == 120
    got = client.download_artifacts(run.run_id, "summary.json", str(tmp_path))
    assert Path(got).read_text() == "the result"


def test_a_step_is_there_once_after_everything(server: MLflowServer, tmp_path: Path) -> None:
    """80 steps: a lost server, half a line of a killed process, ten steps computed again, three replays."""
    run, path = open_run(server.uri, "paper", "replayed", {}), tmp_path / "journal.jsonl"
    with Tracker(path, server.uri, run.run_id) as tracker:
        for step in range(25):
            tracker.log(step, {"loss": step / 10, "lr": 1e-3})
        wait(lambda: len(histories(server.uri, run.run_id).get("lr", [])) == 25)
        server.kill()
        for step in range(25, 50):
            tracker.log(step, {"loss": step / 10, "lr": 1e-3})
        tracker.close(timeout=0)
    with open(path, "ab") as file:
        file.write(b'{"step": 50, "time": 17')
    server.start()
    with Tracker(path, server.uri, run.run_id) as again:
        for step in range(40, 80):
            again.log(step, {"loss": step / 10, "lr": 1e-3})
    for _ in range(3):
        sender = Sender(Journal(path), server.uri, run.run_id)
        sender._known = {}  # nothing is asked: the server itself keeps equal metrics once
        sender.send()
    want = [(step, step / 10) for step in range(80)]
    assert histories(server.uri, run.run_id) == {"loss": want, "lr": [(step, 1e-3) for step in range(80)]}
