"""A registered export behind `mlflow models serve`."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

from multicse.models.text_encoder import TextEncoder
from multicse.trainers.engine.mlflow_server import register
from multicse.trainers.engine.tracking import open_run
from tests.cluster.servers import Server

pytestmark = pytest.mark.cluster

TEXTS = ["the cat sees a red house", "dog"]


def test_a_served_version_gives_our_vectors(place: Path, tmp_path: Path) -> None:
    encoder = TextEncoder.from_pretrained(str(place / "encoder"), pooling="mean").eval()
    encoder.save(str(tmp_path / "export"))
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = open_run(uri, "paper", "served", {})
    register(uri, run.run_id, tmp_path / "export", "mine")
    run.finish()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/mine/1", "--env-manager", "local"]
    active = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it calls uvicorn by name
    env = {"MLFLOW_TRACKING_URI": uri, "PATH": active}
    server = Server(tmp_path, [*command, "--port", "{port}"], health="/ping", env=env)
    server.start()
    try:
        asked = urllib.request.Request(
            f"{server.uri}/invocations", json.dumps({"inputs": TEXTS}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=300) as answer:
            found = json.load(answer)["predictions"]
    finally:
        server.kill()
    with torch.no_grad():
        np.testing.assert_allclose(np.array(found), encoder(encoder.tokenize(TEXTS)).numpy(), atol=1e-5)
