"""Servers for several tests of this folder; each is started once per test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.servers import BUCKET, CLUSTER, MLflowServer, S3Server, plain_env
from tests.cluster.warm import Warm
from tests.conftest import ROOT


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Start an S3-compatible store on loopback with the bucket `BUCKET`."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def tracking(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[MLflowServer]:
    """Start an MLflow server that proxies artifacts to the store, so that clients need no access to the store."""
    folder = tmp_path_factory.mktemp("mlflow")
    with MLflowServer(folder, artifacts=f"s3://{BUCKET}/artifacts", env=s3.env_for_clients) as server:
        yield server


@pytest.fixture(scope="session")
def python() -> Iterator[str]:
    """Return a program that runs the scripts of this clone in forks of one process; for drivers that no test kills."""
    warm = Warm(ROOT, plain_env())
    yield str(warm.bin / "python")
    warm.stop()


@pytest.fixture
def knows_the_store(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of the store for the raylets that tests start, and for their workers."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in {**CLUSTER, **s3.env_for_clients}.items():
        monkeypatch.setenv(name, value)
