"""Everything through an S3-compatible store: shards, checkpoints and artifacts, from a submitted job."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data.offline.demo import write_demo_shards
from tests.cluster.servers import BUCKET, RAY, MLflowServer, RayHead, S3Server, plain_env

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture
def head() -> Iterator[RayHead]:
    pytest.importorskip("ray.dashboard.modules.job", reason="ray[default] is not installed (pip install -e '.[cluster]')")
    one = RayHead()
    try:
        one.start()
        yield one
    finally:
        one.kill()


def content(s3: S3Server, key: str) -> bytes:
    client: Any = s3.client()
    return bytes(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())


def pack(s3: S3Server, folder: Path, *kinds: str) -> None:
    """The offline shards into the store, with the command that a user has."""
    for kind, place in write_demo_shards(folder, kinds).items():
        command = [sys.executable, "pipelines/pack.py", "upload", str(place), f"s3://{BUCKET}/shards/{kind}"]
        done = subprocess.run(command, cwd=ROOT, env={**plain_env(), **s3.env_for_clients}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        there = {Path(key).name: size for key, size in s3.objects(f"shards/{kind}/").items()}
        assert there == {file.name: file.stat().st_size for file in place.iterdir() if file.is_file()}


def test_shards_checkpoints_and_artifacts_are_in_the_store(
    s3: S3Server, tracking: MLflowServer, head: RayHead, tmp_path: Path
) -> None:
    """`ray job submit` with nothing but URLs: the store holds all that a later run, or a user, needs."""
    import torch
    from mlflow import MlflowClient
    from safetensors.torch import load, load_file

    pack(s3, tmp_path / "shards", "text", "image")
    output = tmp_path / "run"
    variables = {"MULTICSE_STORAGE": f"s3://{BUCKET}/runs", "MLFLOW_TRACKING_URI": tracking.uri, **s3.env_for_clients}
    command = [RAY, "job", "submit", "--runtime-env-json", json.dumps({"env_vars": variables}), "--working-dir", "."]
    command += ["--", "python", "pipelines/visualcse.py", "smoke", "--run.output", str(output)]
    command += [f"--streams.text.shards=s3://{BUCKET}/shards/text", f"--streams.image.shards=s3://{BUCKET}/shards/image"]
    done = subprocess.run(command, cwd=ROOT, env=head.env_for_jobs, capture_output=True, text=True, timeout=420)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-3000:]

    summary = json.loads((output / "summary.json").read_text())
    run_id = summary["mlflow_run_id"]
    checkpoints = s3.objects(f"runs/{run_id}/")
    last = max(key.rpartition("/")[0] for key in checkpoints if key.endswith("/method.safetensors"))
    names = {Path(key).name for key in checkpoints if key.startswith(f"{last}/")}
    assert {"method.safetensors", "best.safetensors", "state.pt", "recipe.json", "journal.jsonl"} <= names
    state = torch.load(io.BytesIO(content(s3, f"{last}/state.pt")), weights_only=True)
    assert state["step"] == summary["steps"] == 8
    assert json.loads(content(s3, f"{last}/recipe.json"))["streams"]["text"]["shards"] == f"s3://{BUCKET}/shards/text"
    assert not list(output.glob("ray/**/*.safetensors")), "a checkpoint went to the driver's disk"

    artifacts = s3.objects("artifacts/")
    (export,) = [key for key in artifacts if key.endswith("/export/model.safetensors")]
    assert f"/{run_id}/" in export
    assert load(content(s3, export)).keys() == load_file(output / "export" / "model.safetensors").keys()
    assert content(s3, export) == (output / "export" / "model.safetensors").read_bytes()
    assert any(key.endswith("/recipe.json") for key in artifacts) and any(key.endswith(".png") for key in artifacts)

    # The user's machine has no access to the store: the server hands the artifacts on.
    client = MlflowClient(tracking.uri)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED" and "train/image" in run.data.metrics
    assert run.info.artifact_uri.startswith("mlflow-artifacts:")
    got = client.download_artifacts(run_id, "export/model.safetensors", str(tmp_path))
    assert Path(got).read_bytes() == content(s3, export)


def test_a_shard_that_is_not_in_the_store_is_an_error_before_anything_starts(s3: S3Server, tmp_path: Path) -> None:
    command = [sys.executable, "pipelines/simcse.py", "smoke", "--run.output", str(tmp_path / "run")]
    command += [f"--streams.text.shards=s3://{BUCKET}/shards/nothing", f"--run.tracking-uri=sqlite:///{tmp_path / 'm.db'}"]
    done = subprocess.run(command, cwd=ROOT, env={**plain_env(), **s3.env_for_clients}, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"s3://{BUCKET}/shards/nothing" in done.stderr and "no such shard" in done.stderr
    assert not (tmp_path / "run").exists()
