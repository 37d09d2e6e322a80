"""An MLflow server on PostgreSQL with a proxied artifact store, as a team runs it: many trials, backup, passwords."""

from __future__ import annotations

import configparser
import http.client
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster import postgres
from tests.cluster.servers import Server
from trainers.engine.tracker import Tracker
from trainers.engine.tracking import TrackingError, open_run

pytest.importorskip("psycopg", reason="psycopg is not installed (pip install -e '.[test]')")

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TRIALS, DRIVERS, STEPS = 8, 5, 300
METRICS = ("train/text", "train/image", "train/lr/text", "score")
BYTES = 300_000

MakeServer = Callable[..., Server]


@pytest.fixture(scope="module")
def database() -> Iterator[postgres.Postgres]:
    try:
        with postgres.running() as one:
            yield one
    except postgres.PostgresMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def make_server(database: postgres.Postgres, tmp_path: Path) -> Iterator[MakeServer]:
    """Starts servers as docs/cluster.md says: the database's URI, which holds the password, in the environment."""
    started: list[Server] = []

    def make(name: str, *options: str, env: Mapping[str, str] | None = None) -> Server:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", "{port}", "--workers", "2"]
        # uvicorn ends workers that do not answer for 5 s, which on a busy machine they do not while they import.
        command += ["--uvicorn-opts", "--timeout-worker-healthcheck 60"]
        command += ["--serve-artifacts", "--artifacts-destination", str(tmp_path / name / "artifacts"), *options]
        environment = {
            "MLFLOW_BACKEND_STORE_URI": database.create(name),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # else seven more processes
            **(env or {}),
        }
        one = Server(tmp_path / name, command, health="/health", env=environment)
        started.append(one)
        one.start(timeout=240)
        return one

    yield make
    for one in started:
        one.kill()


# ---------------------------------------------------------------------------------------------------------- processes


def value(number: int, metric: int, step: int) -> float:
    """What trial `number` logs: different for every trial, metric and step."""
    return number + metric / 10 + step / 10_000


def content(number: int) -> bytes:
    """The bytes of a trial's artifact."""
    return np.random.default_rng(number).bytes(BYTES)


def trial(number: int, uri: str, parent: str, folder: Path, barrier: Any) -> None:
    """What one trial of a sweep does, in a process of its own; all begin together."""
    barrier.wait(300)
    tags = {"mlflow.parentRunId": parent, "sweep.trial": str(number), "changed.optim.text.lr": str(number)}
    run = open_run(uri, "sweep", f"trial-{number}", {f"p{index}": index for index in range(120)}, tags)
    journal = folder / f"trial-{number}" / "journal.jsonl"
    with Tracker(journal, uri, run.run_id, system_every=0) as tracker:
        for step in range(STEPS):
            tracker.log(step, {name: value(number, index, step) for index, name in enumerate(METRICS)})
    assert run.drain(journal, timeout=120)
    (folder / f"trial-{number}" / "weights.bin").write_bytes(content(number))
    run.log_artifact(folder / f"trial-{number}" / "weights.bin", "export")
    run.finish()


def driver(number: int, uri: str, barrier: Any) -> None:
    """The first thing that a driver does."""
    barrier.wait(300)
    open_run(uri, "race", f"driver-{number}", {"number": number}).finish()


def at_once(count: int, target: Callable[..., None], *arguments: Any) -> None:
    """`target` in `count` processes at once. Fails when one of them does."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    family = [context.Process(target=target, args=(number, *arguments, barrier)) for number in range(count)]
    for process in family:
        process.start()
    for process in family:
        process.join(400)
    alive = [process for process in family if process.is_alive()]
    for process in alive:
        process.kill()
    assert [process.exitcode for process in family] == [0] * count


# -------------------------------------------------------------------------------------------------------------- tests


def test_eight_trials_at_once(make_server: MakeServer, database: postgres.Postgres, tmp_path: Path) -> None:
    """Every metric of every run once, artifacts byte for byte, nothing left running; the backup holds the same."""
    import psycopg
    from mlflow import MlflowClient

    server = make_server("trials")
    parent = open_run(server.uri, "sweep", "parent", {}, {"sweep": "test"})
    at_once(TRIALS, trial, server.uri, parent.run_id, tmp_path)
    parent.finish()

    client = MlflowClient(server.uri)
    everything = client.search_runs([parent.experiment_id])
    assert {run.info.status for run in everything} == {"FINISHED"} and len(everything) == TRIALS + 1
    nested = client.search_runs([parent.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.run_id}'")
    numbers = {run.info.run_id: int(run.data.tags["sweep.trial"]) for run in nested}
    assert sorted(numbers.values()) == list(range(TRIALS))
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

    for run_id, number in numbers.items():
        assert client.get_run(run_id).info.artifact_uri.startswith("mlflow-artifacts:")
        got = client.download_artifacts(run_id, "export/weights.bin", str(tmp_path))
        assert Path(got).read_bytes() == content(number)
    kept = {path.read_bytes() for path in (tmp_path / "trials" / "artifacts").rglob("weights.bin")}
    assert kept == {content(number) for number in range(TRIALS)}

    restore(database, "trials", "copy", tmp_path / "mlflow.dump")
    with psycopg.connect(database.uri("copy")) as connection:
        assert set(connection.execute(query).fetchall()) == expected


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
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_drivers_that_are_all_the_first(make_server: MakeServer) -> None:
    """Nobody made the experiment before; one is made, and every driver has its run in it."""
    from mlflow import MlflowClient

    server = make_server("race")
    at_once(DRIVERS, driver, server.uri)
    client = MlflowClient(server.uri)
    (experiment,) = [found for found in client.search_experiments() if found.name == "race"]
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.info.run_name for run in runs) == [f"driver-{number}" for number in range(DRIVERS)]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert status_of(server, "localhost") == 200
    assert status_of(server, "mlflow.example.org") == 403, "a name that nobody allowed"


def status_of(server: Server, host: str) -> int:
    """Answer to a request for the list of experiments that says it is for another host."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/api/2.0/mlflow/experiments/search?max_results=1", headers={"Host": host})
    return connection.getresponse().status


def test_a_server_with_users(make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's own user list in front of everything, the host that the proxy passes on allowed."""
    pytest.importorskip("flask_wtf", reason="flask-wtf is not installed (pip install 'mlflow[auth]')")
    settings = configparser.ConfigParser()
    settings["mlflow"] = {
        "default_permission": "READ",
        "database_uri": f"sqlite:///{tmp_path / 'users.db'}",
        "admin_username": "lead",
        "admin_password": "a password of more than twelve",
    }
    with open(tmp_path / "users.ini", "w") as file:
        settings.write(file)
    env = {"MLFLOW_AUTH_CONFIG_PATH": str(tmp_path / "users.ini"), "MLFLOW_FLASK_SERVER_SECRET_KEY": "for the tests"}
    allowed = "mlflow.example.org,127.0.0.1:*"
    server = make_server("users", "--app-name", "basic-auth", "--allowed-hosts", allowed, env=env)
    assert status_of(server, "mlflow.example.org") == 401 and status_of(server, "other.example.org") == 403
    with pytest.raises(TrackingError, match="cannot be used"):
        open_run(server.uri, "private", "stranger", {})
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "lead")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    with pytest.raises(TrackingError, match="cannot be used"):
        open_run(server.uri, "private", "stranger", {})
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "a password of more than twelve")
    run = open_run(server.uri, "private", "known", {"lr": 1})
    (tmp_path / "result.txt").write_text("the result")
    run.log_artifact(tmp_path / "result.txt")
    run.finish()

    from mlflow import MlflowClient

    found = MlflowClient(server.uri).get_run(run.run_id)
    assert found.info.status == "FINISHED" and found.data.params == {"lr": "1"}
    got = MlflowClient(server.uri).download_artifacts(run.run_id, "result.txt", str(tmp_path / "run"))
    assert Path(got).read_text() == "the result"


def test_the_database_wants_its_password(database: postgres.Postgres) -> None:
    import psycopg

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(database.uri(password="guessed"))
    with psycopg.connect(database.uri()) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE ROLE another")
