"""The README's way on a fresh machine, one line after the other: a run, then Ray as a service and a job."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.servers import RAY, RayHead

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("data", "models", "evaluation", "trainers", "tune_spaces", "pipelines")

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def test_a_run_then_ray_start_then_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty home. The run starts Ray by itself; a token that it left there would close the cluster that follows."""
    home, clone = tmp_path / "home", tmp_path / "clone"
    home.mkdir()
    for room in ROOMS:
        shutil.copytree(ROOT / room, clone / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS", "PYTHONPATH", "MLFLOW_TRACKING_URI", "MULTICSE_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    head = RayHead()
    del head.env["RAY_AUTH_MODE"]

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=clone, env=head.env_for_jobs, capture_output=True, text=True)

    demo = run(sys.executable, "pipelines/visualcse.py", "smoke", "--run.max_steps", "2")
    assert demo.returncode == 0, demo.stderr[-3000:]
    assert not (home / ".ray" / "auth_token").exists()

    script = ("python", "pipelines/visualcse.py", "smoke", "--run.max_steps", "2")
    head.start()
    try:
        job = (RAY, "job", "submit", "--working-dir", ".", "--", *script)
        lost = run(*job)
        said = lost.stdout + lost.stderr
        assert lost.returncode == 1 and "--run.output " in said and "--run.tracking_uri " in said, said[-3000:]
        done = run(*job, "--run.output", f"{clone}/runs/job", "--run.tracking_uri", f"sqlite:///{clone}/mlflow.db")
    finally:
        head.kill()
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert (clone / "runs" / "job" / "export" / "model.safetensors").exists()
    assert re.search(rf"^model +{clone}/runs/job/export ", done.stdout, re.MULTILINE)
    assert f"mlflow ui --backend-store-uri sqlite:///{clone}/mlflow.db" in done.stdout
    assert (clone / "mlflow.db").exists()
