"""MLflow on PostgreSQL with a proxied artifact store and users, as a team runs it: many trials, backup, passwords."""

from __future__ import annotations

import configparser
import http.client
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multicse.trainers.engine.mlflow_server import TrackingError
from multicse.trainers.engine.tracking import Tracker, open_run
from tests.cluster import postgres
from tests.cluster.servers import Server

pytest.importorskip("psycopg", reason="psycopg is not installed (pip install -e '.[test]')")
pytest.importorskip("flask_wtf", reason="flask-wtf is not installed (pip install 'mlflow[auth]')")

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

TRIALS, STEPS = 8, 300
METRICS = ("train/text", "train/image", "train/lr/text", "score")
BYTES = 300_000
PASSWORD = "a password of more than twelve"


@pytest.fixture
def database() -> Iterator[postgres.Postgres]:
    try:
        with postgres.running() as one:
            yield one
    except postgres.PostgresMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def server(database: postgres.Postgres, tmp_path: Path) -> Iterator[Server]:
    """As docs/cluster.md says: the database's URI, which holds the password, in the environment; MLflow's own user list in
    front of everything, the host that the proxy passes on allowed."""
    settings = configparser.ConfigParser()
    settings["mlflow"] = {
        "default_permission": "READ",
        "database_uri": f"sqlite:///{tmp_path / 'users.db'}",
        "admin_username": "lead",
        "admin_password": PASSWORD,
    }
    with open(tmp_path / "users.ini", "w") as file:
        settings.write(file)
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", "{port}", "--workers", "2"]
    # uvicorn ends workers that do not answer for 5 s, which on a busy machine they do not while they import.
    command += ["--uvicorn-opts", "--timeout-worker-healthcheck 60"]
    command += ["--serve-artifacts", "--artifacts-destination", str(tmp_path / "artifacts")]
    command += ["--app-name", "basic-auth", "--allowed-hosts", "mlflow.example.org,127.0.0.1:*"]
    environment = {
        "MLFLOW_BACKEND_STORE_URI": database.create("trials"),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # else seven more processes
        "MLFLOW_AUTH_CONFIG_PATH": str(tmp_path / "users.ini"),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "for the tests",
    }
    one = Server(tmp_path / "server", command, health="/health", env=environment)
    one.start(timeout=600)
    yield one
    one.kill()


def value(number: int, metric: int, step: int) -> float:
    """What trial `number` logs: different for every trial, metric and step."""
    return number + metric / 10 + step / 10_000


def content(number: int) -> bytes:
    """The bytes of a trial's artifact."""
    return np.random.default_rng(number).bytes(BYTES)


def trial(number: int, uri: str, folder: Path, barrier: Any) -> None:
    """What one trial of a sweep does, in a process of its own; all begin together, and each finds no experiment."""
    barrier.wait(900)
    tags = {"mlflow.parentRunId": "theirs", "sweep.trial": str(number), "changed.optim.text.lr": str(number)}
    run = open_run(uri, "sweep", f"trial-{number}", {f"p{index}": index for index in range(120)}, tags)
    journal = folder / f"trial-{number}" / "journal.jsonl"
    with Tracker(journal, uri, run.run_id) as tracker:
        for step in range(STEPS):
            tracker.log(step, {name: value(number, index, step) for index, name in enumerate(METRICS)})
    assert run.drain(journal, timeout=600)
    (folder / f"trial-{number}" / "weights.bin").write_bytes(content(number))
    run.log_artifact(folder / f"trial-{number}" / "weights.bin", "export")
    run.finish()


def at_once(uri: str, folder: Path) -> None:
    """All trials in processes of their own. Fails when one of them does."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(TRIALS)
    family = [context.Process(target=trial, args=(number, uri, folder, barrier)) for number in range(TRIALS)]
    for process in family:
        process.start()
    for process in family:
        process.join(400)
    for process in family:
        process.kill()
    assert [process.exitcode for process in family] == [0] * TRIALS


def status_of(server: Server, host: str) -> int:
    """Answer to a request for the list of experiments that says it is for another host."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("GET", "/api/2.0/mlflow/experiments/search?max_results=1", headers={"Host": host})
    return connection.getresponse().status


def test_eight_trials_at_once(
    server: Server, database: postgres.Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers are refused. Of those with a password, who are all the first, every metric of every run is there once,
    artifacts byte for byte, nothing left running; the backup holds the same."""
    import psycopg
    from mlflow import MlflowClient

    assert status_of(server, "mlflow.example.org") == 401 and status_of(server, "other.example.org") == 403
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "lead")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    with pytest.raises(TrackingError, match=r"run\.tracking_uri="):
        open_run(server.uri, "sweep", "stranger", {})
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    at_once(server.uri, tmp_path)

    client = MlflowClient(server.uri)
    (experiment,) = [found for found in client.search_experiments() if found.name == "sweep"]
    nested = client.search_runs([experiment.experiment_id], "tags.`mlflow.parentRunId` = 'theirs'")
    numbers = {run.info.run_id: int(run.data.tags["sweep.trial"]) for run in nested}
    assert sorted(numbers.values()) == list(range(TRIALS))
    assert {run.info.status for run in nested} == {"FINISHED"}
    assert all(len(run.data.params) == 120 for run in nested)

    # The table itself, which MLflow's client cannot embellish.
    expected = {
        (run_id, name, step, value(number, index, step))
        for run_id, number in numbers.items()
        for index, name in enumerate(METRICS)
        for step in range(STEPS)
    }
    query = "SELECT run_uuid, key, step, value FROM metrics"
    with psycopg.connect(database.uri("trials")) as connection:
        rows = connection.execute(query).fetchall()
    assert len(rows) == len(expected) and set(rows) == expected

    assert all(run.info.artifact_uri.startswith("mlflow-artifacts:") for run in nested)
    got = client.download_artifacts(nested[0].info.run_id, "export/weights.bin", str(tmp_path))
    assert Path(got).read_bytes() == content(numbers[nested[0].info.run_id])
    kept = {path.read_bytes() for path in (tmp_path / "artifacts").rglob("weights.bin")}
    assert kept == {content(number) for number in range(TRIALS)}

    restore(database, "trials", "copy", tmp_path / "mlflow.dump")
    with psycopg.connect(database.uri("copy")) as connection:
        assert set(connection.execute(query).fetchall()) == expected
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(database.uri(password="guessed"))


def restore(database: postgres.Postgres, source: str, target: str, file: Path) -> None:
    """The two commands of the backup."""
    database.create(target)
    environment = {**os.environ, "PGPASSWORD": database.password}
    to = ["--host", "127.0.0.1", "--port", str(database.port), "--username", postgres.USER]
    for command in (
        ["pg_dump", *to, "--format", "custom", "--file", str(file), source],
        ["pg_restore", *to, "--dbname", target, "--no-owner", str(file)],
    ):
        command[0] = str(database.programs / command[0])
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
