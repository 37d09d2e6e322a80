"""Several raylets on one machine stand for several nodes: one that dies, a cluster that grows, a job in S3."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from multicse.data.offline.demo import write_demo_shards
from multicse.trainers.engine.cluster import AUTOSCALING
from multicse.trainers.engine.journal import Journal
from multicse.trainers.engine.run import key_of
from multicse.trainers.recipe import Recipe
from tests.cluster.servers import BUCKET, CLUSTER, RAY, MLflowServer, Nodes, RayHead, S3Server, plain_env
from tests.conftest import ROOT
from tests.worlds import history, write_encoder

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800), pytest.mark.xdist_group("nodes")]


@pytest.fixture(scope="module")
def nodes(s3: S3Server) -> Iterator[Nodes]:
    """Two raylets that know the store by their environment, which a driver on them has as well."""
    with pytest.MonkeyPatch.context() as patch:
        variables = {**CLUSTER, "MULTICSE_STORAGE": f"s3://{BUCKET}/runs", **s3.env_for_clients}
        for name, value in variables.items():
            patch.setenv(name, value)
        one = Nodes(2, cpus=2)
        patch.setenv("RAY_ADDRESS", one.address)
        yield one
        one.stop()


def training(nodes: Nodes) -> list[tuple[Any, psutil.Process]]:
    """The training workers, each with its raylet."""
    return [
        (node, process)
        for node in nodes.workers
        for process in nodes.family(node)
        if "TrainWorker" in " ".join(process.cmdline())
    ]


def drive(
    python: str, output: Path, uri: str, *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a driver on the cluster that RAY_ADDRESS names."""
    command = [python, "pipelines/visualcse.py", "smoke", "--run.output_dir", str(output), "--run.tracking-uri", uri]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=ROOT,
        env=dict(env or os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def content(s3: S3Server, key: str) -> bytes:
    client: Any = s3.client()
    return bytes(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())


def last_step(journal: Path) -> int:
    """Return the last step in a journal."""
    return max((line["step"] for _, line in Journal(journal).lines()), default=0)


def wait_for_step(driver: subprocess.Popen[str], output: Path, step: int) -> None:
    journal, deadline = output / "journal.jsonl", time.monotonic() + 900
    while time.monotonic() < deadline and driver.poll() is None:
        if journal.exists() and f'"step": {step},' in journal.read_text():
            return
        time.sleep(0.1)
    driver.kill()
    raise AssertionError(f"no step {step}:\n{driver.communicate()[0][-3000:]}")


def test_a_node_that_dies_is_replaced_by_another(
    nodes: Nodes, s3: S3Server, tracking: MLflowServer, python: str, tmp_path: Path
) -> None:
    """The run ends; every step is in MLflow once, with the numbers of a run that nothing happened to; so is the model."""
    settings = ["--run.max-steps", "30", "--evaluation.eval_steps", "10", "--run.logging-steps", "1", "--run.threads", "1"]
    broken, whole = tmp_path / "broken", tmp_path / "whole"

    driver = drive(python, broken, tracking.uri, *settings, "--run.max-failures", "2")
    try:
        wait_for_step(driver, broken, 15)
        dead = training(nodes)[0][0]
        nodes.kill(dead)
        assert 15 <= last_step(broken / "journal.jsonl") < 30, "it was not interrupted"
        for file in broken.glob("journal.jsonl*"):  # its disk is gone with it
            file.unlink(missing_ok=True)
        text, _ = driver.communicate(timeout=1200)
    finally:
        driver.kill()
    assert driver.returncode == 0, text[-3000:]
    assert dead.all_processes["raylet"][0].process.poll() == -signal.SIGKILL

    undisturbed = drive(python, whole, tracking.uri, *settings, "--run.num_workers", "0")  # in one process, without Ray
    text, _ = undisturbed.communicate(timeout=1200)
    assert undisturbed.returncode == 0, text[-3000:]

    one, other = (json.loads((output / "summary.json").read_text()) for output in (broken, whole))
    assert one["steps"] == other["steps"] == 30 and one["identity"] == other["identity"]
    for key in ("train/text", "train/image", "train/lr/text"):
        found = history(tracking.uri, one["mlflow_run_id"], key)
        assert [step for step, _ in found] == list(range(1, 31)), key
        assert found == history(tracking.uri, other["mlflow_run_id"], key)
    key = "eval/lee-dev/spearman"
    found = history(tracking.uri, one["mlflow_run_id"], key)
    assert [step for step, _ in found] == [0, 10, 20, 30]
    assert found == history(tracking.uri, other["mlflow_run_id"], key)

    sent = {key.split("/")[3] for key in s3.objects("runs/shards/") if key.endswith("/dataset.json")}
    assert sent >= {"text", "image"}, "the offline shards of the driver's disk travel to the other nodes"

    model = "export/model.safetensors"
    assert (broken / model).read_bytes() == (whole / model).read_bytes()
    (uploaded,) = [key for key in s3.objects("artifacts/") if one["mlflow_run_id"] in key and key.endswith(model)]
    assert content(s3, uploaded) == (whole / model).read_bytes()


@pytest.fixture
def growing(s3: S3Server, tmp_path: Path) -> Iterator[RayHead]:
    """A head without CPUs, as in cluster.yaml, whose autoscaler (the one of `ray up`) makes nodes of 2 CPUs on demand."""
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    most = {AUTOSCALING["CPU"]: 4}
    config = tmp_path / "autoscaling.json"
    variables = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_enable_autoscaler_v2": "1"}
    variables |= {"RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID}
    variables |= {"RAY_NODE_TYPE_NAME": "ray.head.default"}
    one = RayHead(
        ["--num-cpus=0", f"--resources={json.dumps(most)}", f"--autoscaling-config={config}"],
        {**s3.env_for_clients, **variables, "MULTICSE_STORAGE": f"s3://{BUCKET}/runs"},
    )
    module = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
    provider = {"type": "external", "module": module, "gcs_address": one.address, "launch_multiple": True}
    provider["head_node_id"] = FAKE_HEAD_NODE_ID
    types = {
        "ray.head.default": {"resources": {"CPU": 0, **most}, "node_config": {}, "max_workers": 0},
        "cpu": {"resources": {"CPU": 2}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    }
    settings = {"cluster_name": "growing", "max_workers": 2, "idle_timeout_minutes": 5, "upscaling_speed": 1, "docker": {}}
    settings |= {"provider": provider, "available_node_types": types, "head_node_type": "ray.head.default", "auth": {}}
    settings |= {name: [] for name in ("initialization_commands", "setup_commands", "cluster_synced_files", "rsync_exclude")}
    settings |= {name: [] for name in ("rsync_filter", "head_setup_commands", "worker_setup_commands")}
    settings |= {name: [] for name in ("head_start_ray_commands", "worker_start_ray_commands")}
    config.write_text(json.dumps({**settings, "file_mounts": {}, "file_mounts_sync_continuously": False}))
    with one:
        yield one


def test_a_cluster_that_begins_with_its_head_alone_grows(
    growing: RayHead, tracking: MLflowServer, python: str, tmp_path: Path
) -> None:
    """The run waits for the node that the autoscaler makes; what it may not have is refused."""
    env = {**growing.env, "RAY_ADDRESS": growing.address}
    driver = drive(python, tmp_path / "refused", tracking.uri, "--run.cpus-per-worker", "4", env=env)
    text, _ = driver.communicate(timeout=600)
    assert driver.returncode == 2 and "the cluster has 4: the run would wait forever" in text, text[-3000:]
    encoder = write_encoder(tmp_path / "encoder")  # of which a node that is bought for the run would know nothing
    driver = drive(python, tmp_path / "refused", tracking.uri, "--encoder.path", encoder, env=env)
    text, _ = driver.communicate(timeout=600)
    assert driver.returncode == 2 and f"encoder.path: {encoder}" in text and "no other node yet" in text, text[-3000:]
    assert not (tmp_path / "refused").exists()
    driver = drive(python, tmp_path / "run", tracking.uri, "--run.max-steps", "2", env=env)
    try:
        text, _ = driver.communicate(timeout=1200)
    finally:
        driver.kill()
    assert driver.returncode == 0, text[-3000:]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 2


@pytest.fixture
def head() -> Iterator[RayHead]:
    """It is given no AWS settings: what a job needs travels with the job."""
    pytest.importorskip("ray.dashboard.modules.job", reason="ray[default] is not installed (pip install -e '.[cluster]')")
    with RayHead(jobs=True) as one:
        yield one


def test_a_job_leaves_everything_in_the_store(
    head: RayHead, s3: S3Server, tracking: MLflowServer, python: str, offline: Path, tmp_path: Path
) -> None:
    """`ray job submit` with nothing but URLs: the store holds all that a later run, or a user, needs."""
    import torch
    from mlflow import MlflowClient

    for kind, place in write_demo_shards(offline / "runs" / "offline", ("text", "image")).items():
        upload = [python, "pipelines/pack.py", "upload", str(place), f"s3://{BUCKET}/shards/{kind}"]
        subprocess.run(upload, cwd=ROOT, env={**plain_env(), **s3.env_for_clients}, check=True)
    output = tmp_path / "run"
    variables = {"MULTICSE_STORAGE": f"s3://{BUCKET}/runs", "MLFLOW_TRACKING_URI": tracking.uri, **s3.env_for_clients}
    command = [RAY, "job", "submit", "--runtime-env-json", json.dumps({"env_vars": variables}), "--working-dir", "."]
    command += ["--", "python", "pipelines/visualcse.py", "smoke", "--run.output_dir", str(output)]
    command += [f"--streams.text.shards=s3://{BUCKET}/shards/text", f"--streams.image.shards=s3://{BUCKET}/shards/image"]
    done = subprocess.run(command, cwd=ROOT, env=head.env_for_jobs, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-3000:]

    summary = json.loads((output / "summary.json").read_text())
    run_id = summary["mlflow_run_id"]
    recipe = Recipe.from_json((output / "recipe.json").read_text())
    checkpoints = s3.objects(f"runs/{key_of(recipe)}/")
    last = max(key.rpartition("/")[0] for key in checkpoints if key.endswith("/method.safetensors"))
    names = {Path(key).name for key in checkpoints if key.startswith(f"{last}/")}
    assert {"method.safetensors", "best.safetensors", "state.pt", "recipe.json", "journal.jsonl"} <= names
    state = torch.load(io.BytesIO(content(s3, f"{last}/state.pt")), weights_only=True)
    assert state["progress"]["step"] == summary["steps"] == 8
    assert json.loads(content(s3, f"{last}/recipe.json"))["streams"]["text"]["shards"] == f"s3://{BUCKET}/shards/text"
    assert not list(output.glob("ray/**/*.safetensors")), "a checkpoint went to the driver's disk"

    # The user's machine has no access to the store: the server hands the artifacts on.
    client = MlflowClient(tracking.uri)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED" and "train/image" in run.data.metrics
    assert run.info.artifact_uri.startswith("mlflow-artifacts:")
    got = client.download_artifacts(run_id, "export/model.safetensors", str(tmp_path))
    assert Path(got).read_bytes() == (output / "export" / "model.safetensors").read_bytes()
    artifacts = [key for key in s3.objects("artifacts/") if f"/{run_id}/" in key]
    assert any(key.endswith("/recipe.json") for key in artifacts) and any(key.endswith(".png") for key in artifacts)
