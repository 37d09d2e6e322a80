"""A sweep loses one of its raylets and then the whole cluster, and resumes on another cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from multicse.trainers.engine.journal import Journal
from tests.cluster.servers import BUCKET, MLflowServer, Nodes, S3Server, plain_env
from tests.cluster.test_nodes import content, last_step
from tests.cluster.test_sweep_resume import IN_PROCESS, Sweep, kill

TRIALS, STEPS = 5, 10
WORDS = f"--trials {TRIALS} --searcher random --retries 3 --optim.text.lr 1e-6 --evaluation.eval_steps 1 --run.threads 1"
"""Trial 0, the unchanged recipe, hardly learns, so it is not the best."""
RUNG = 6
"""ASHA's rung for trials of ten steps with an evaluation at every step."""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800), pytest.mark.xdist_group("nodes")]


def undisturbed(folder: Path, python: str) -> Sweep:
    """Run the same trials to their end on this machine, each in the trial's own process."""
    env = {name: value for name, value in plain_env().items() if name != "MULTICSE_STORAGE"}
    sweep = Sweep(
        folder / "whole", f"sqlite:///{folder / 'mlflow.db'}", f"{WORDS} --scheduler none {IN_PROCESS}", env, python
    )
    sweep.end(sweep.start())
    return sweep


def losses(sweep: Sweep) -> list[list[tuple[int, float]]]:
    """Return step and loss of every trial, in the order of the trials."""
    found = sweep.histories()
    return [[(step, value) for step, _, value in found[trial["trial_id"]]] for trial in sweep.trials]


def on(nodes: Nodes) -> dict[str, str]:
    """Return the environment of a driver on a cluster."""
    return {**os.environ, "RAY_ADDRESS": nodes.address, "MULTICSE_STORAGE": f"s3://{BUCKET}/runs"}


def journals(processes: list[psutil.Process]) -> dict[Path, int]:
    """Return the journals that these processes write, with the last step in each."""
    found = set()
    for process in processes:
        try:
            found |= {Path(file.path) for file in process.open_files() if file.path.endswith("/journal.jsonl")}
        except psutil.Error:
            continue
    return {path: last_step(path) for path in found}


def wait_for_progress(sweep: Sweep, driver: subprocess.Popen[bytes], nodes: Nodes) -> tuple[Any, list[Path]]:
    """Wait for a trial in the middle of training, and return its node and the journals on that node."""
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline and driver.poll() is None:
        for node in nodes.workers:
            steps = journals(nodes.family(node))
            if any(STEPS * 0.3 <= step <= STEPS * 0.6 for step in steps.values()):
                return node, list(steps)
        time.sleep(0.1)
    raise AssertionError(f"no trial was seen in its middle:\n{sweep.text()}")


def check_best(sweep: Sweep, whole: Sweep, s3: S3Server) -> None:
    """Check that the best trial's model equals the undisturbed sweep, as export, artifact and registered version."""
    from mlflow import MlflowClient

    summary, expected = sweep.summary, whole.summary
    for key in ("trial", "changes", "score"):
        assert summary["best"][key] == expected["best"][key]
    assert summary["best"]["trial"] != 0 and summary["held_out"] == expected["held_out"]
    model = "export/model.safetensors"
    weights = (Path(expected["export"]) / "model.safetensors").read_bytes()
    assert (Path(summary["export"]) / "model.safetensors").read_bytes() == weights
    (uploaded,) = [key for key in s3.objects("artifacts/") if summary["mlflow_run_id"] in key and key.endswith(model)]
    assert content(s3, uploaded) == weights
    client = MlflowClient(sweep.uri)
    assert client.get_run(summary["mlflow_run_id"]).info.status == "FINISHED"
    name = summary["model"].removeprefix("models:/").removesuffix("@champion")
    assert client.get_model_version_by_alias(name, "champion").run_id == summary["mlflow_run_id"]


def records(s3: S3Server) -> dict[str, dict[str, Any]]:
    """Return the records of the finished trials by trial."""
    keys = [key for key in s3.objects("runs/") if re.search(r"/sweep-[^/]*/[^/]*_\d+\.json$", key)]
    found = [json.loads(content(s3, key)) for key in keys]
    return {record["trial_id"]: record for record in found if record["status"] in ("finished", "stopped")}


def checkpoints(s3: S3Server, trial_id: str) -> dict[str, Any]:
    """Return the time of each file in a trial's checkpoints."""
    client: Any = s3.client()
    keys = [key for key in s3.objects("runs/") if f"/{trial_id}-seed-" in key]
    return {key: client.head_object(Bucket=BUCKET, Key=key)["LastModified"] for key in keys}


def test_a_node_and_then_the_cluster_dies(
    knows_the_store: None, s3: S3Server, tracking: MLflowServer, python: str, tmp_path: Path
) -> None:
    """The trial of a dead node continues on the other node. Then only the store and the tracking server are left of the
    cluster; the sweep, with ASHA, resumes on another cluster and has the results of an undisturbed sweep."""
    whole = undisturbed(tmp_path, python)
    nodes = Nodes(2, cpus=1)
    try:
        sweep = Sweep(tmp_path / "sweep", tracking.uri, WORDS, on(nodes))
        driver, deadline = sweep.start(), time.monotonic() + 900
        try:
            dead, cut_off = wait_for_progress(sweep, driver, nodes)
            nodes.kill(dead)
            assert driver.poll() is None and dead.all_processes["raylet"][0].process.poll() == -signal.SIGKILL
            started = {Journal(path).header()["run_id"]: last_step(path) for path in cut_off}  # type: ignore[index]
            assert started and all(0 < step < STEPS for step in started.values()), "the trial was not interrupted"
            for path in cut_off:  # its disk is lost as well
                shutil.rmtree(path.parent)
            while not records(s3) and driver.poll() is None and time.monotonic() < deadline:
                time.sleep(1)  # a look costs the store as much processor time as a step
            assert driver.poll() is None, sweep.text()
        finally:
            kill(driver)
            nodes.kill_all()
    finally:
        nodes.stop()
    shutil.rmtree(sweep.output)
    before = records(s3)
    assert 1 <= len(before) < TRIALS
    stored = {trial_id: checkpoints(s3, trial_id) for trial_id in before}
    known = {trial_id: points for trial_id, points in sweep.histories().items() if trial_id in before}
    assert known.keys() == before.keys() and all(stored.values()) and all(known.values())

    nodes = Nodes(2, cpus=1)
    try:
        sweep.env, sweep.python = on(nodes), python
        sweep.end(sweep.start())
    finally:
        nodes.stop()

    # Not trained again: values, files and their times are unchanged.
    assert {trial_id: records(s3)[trial_id] for trial_id in before} == before
    histories = sweep.histories()
    assert {trial_id: histories[trial_id] for trial_id in before} == known
    assert {trial_id: checkpoints(s3, trial_id) for trial_id in stored} == stored

    trials, expected = sweep.trials, whole.trials
    runs = sweep.runs()
    assert runs.keys() == {trial["trial_id"] for trial in trials}
    assert "RUNNING" not in {run.info.status for run in runs.values()}
    assert started.keys() <= {run.info.run_id for run in runs.values()}, "another attempt has another MLflow run"
    assert [trial["changes"] for trial in trials] == [trial["changes"] for trial in expected]
    for trial, other, found, others in zip(trials, expected, losses(sweep), losses(whole), strict=True):
        # A trial that ASHA stopped has the first steps of the complete trial; its loss can be one step ahead of its score.
        assert trial["curve"] == other["curve"][: trial["step"]]
        assert found == others[: len(found)] and trial["step"] <= len(found) <= STEPS
        assert trial["step"] == (STEPS if trial["status"] == "finished" else RUNG)
    # Trial 0 and the best trial at the rung continue. Others are compared with them, if ASHA's state survives the driver.
    scores = [dict(trial["curve"])[RUNG] for trial in expected]
    best = scores.index(max(scores[1:]))
    assert [trials[number]["status"] for number in (0, best)] == ["finished"] * 2
    assert "stopped" in {trial["status"] for trial in trials} <= {"stopped", "finished"}
    check_best(sweep, whole, s3)
