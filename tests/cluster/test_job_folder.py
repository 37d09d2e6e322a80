"""Jobs that get only their folder: ``ray job submit --working-dir . -- python pipelines/...``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from multicse.trainers.recipe import Recipe
from tests.cluster.servers import RAY, RayHead
from tests.conftest import copy_code

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def test_results_remain_after_ray_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model, tracking data and best recipe of a run and of a sweep remain; the first and last lines name their folder."""
    from mlflow import MlflowClient

    pytest.importorskip("ray.dashboard.modules.job", reason="ray[default] is not installed (pip install -e '.[cluster]')")
    clone, kept = tmp_path / "clone", tmp_path / "home" / "multicse"
    copy_code(clone)
    for name in ("MLFLOW_TRACKING_URI", "MULTICSE_STORAGE", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    head = RayHead(env={"HOME": str(kept.parent)})

    def submit(*command: str) -> tuple[str, str]:
        job = [RAY, "job", "submit", "--working-dir", ".", "--", "python", *command]
        done = subprocess.run(job, cwd=clone, env=head.env_for_jobs, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-3000:]
        first, *_, last = [line for line in done.stdout.splitlines() if line.startswith("results ")]
        return first, last

    kept.parent.mkdir()
    try:
        head.start()
        of_run = submit("pipelines/visualcse.py", "smoke")
        of_sweep = submit("pipelines/sweep.py", "simcse", "--recipe", "smoke", "--trials", "1")
    finally:
        head.kill()
    run, (sweep,) = kept / "runs" / "visualcse" / "smoke", (kept / "runs").glob("sweep-*")
    for folder, lines in {run: of_run, sweep: of_sweep}.items():
        assert all(str(folder) in line for line in lines)
    client = MlflowClient(f"sqlite:///{kept / 'mlflow.db'}")
    for folder, model in {run: run / "export", sweep: sweep / "best" / "export"}.items():
        summary = json.loads((folder / "summary.json").read_text())
        assert (model / "model.safetensors").exists() and summary["export"] == str(model)
        logged = client.get_run(summary["mlflow_run_id"])
        assert logged.info.status == "FINISHED"
        assert {"export", "figures"} <= {file.path for file in client.list_artifacts(logged.info.run_id)}
    best = Recipe.from_json((sweep / "best.json").read_text())
    encoder = "multicse/models/small-bert-en"  # Ray uploads a folder instead of each link
    assert (best.streams["text"].shards, best.flat()["encoder.path"]) == ("runs/offline/text", encoder)
