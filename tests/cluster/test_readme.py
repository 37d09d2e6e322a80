"""Run the README's commands, and a sweep as a job, on a fresh machine with an empty home folder."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from PIL import Image

from multicse.trainers.recipe import Recipe
from tests.cluster.servers import RAY, RayHead
from tests.cluster.warm import Warm
from tests.conftest import ROOT, copy_code
from tests.test_docs_commands import commands

SHORT = "--run.max_steps 2"
STAND_INS = {
    "make demo": f"python pipelines/visualcse.py smoke {SHORT}",  # without its installation commands
    "make test": "true",  # this test is one of them
    "--trials 16": f"--trials 1 {SHORT}",
    "sentences.txt --run.num_workers 0": f"sentences.txt --run.num_workers 0 {SHORT}",
    "photos/\n": f"photos/ {SHORT} --run.num_workers 0\n",
    "ray job": f"{RAY} job",
    "-- python pipelines/visualcse.py\n": f"-- python pipelines/visualcse.py smoke {SHORT}\n",
}
"""Replacements for files that only a reader has, and for commands that take too long."""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def test_every_command_of_the_readme(offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Includes a cluster after a run that started Ray: a token left in the home folder would lock that cluster.

    What a job writes remains after Ray has stopped; its first and last lines name the folder.
    """
    home, clone = tmp_path / "home", tmp_path / "clone"
    home.mkdir()
    copy_code(clone)
    (clone / "runs").mkdir()
    (clone / "runs" / "offline").symlink_to(offline / "runs" / "offline")  # the job writes its own
    for name in (".gitignore", ".rayignore"):  # a job's copy of the folder does not contain the listed files
        shutil.copy(ROOT / name, clone)
    lines = "".join(f"Sentence {number} of a reader's own {number % 7} pages.\n" for number in range(400))
    (clone / "sentences.txt").write_text(lines)
    for number in range(60):
        photo = clone / "photos" / ("cats", "dogs")[number % 2] / f"{number}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (70, 100, 3), dtype=np.uint8)).save(photo)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS", "PYTHONPATH", "MLFLOW_TRACKING_URI", "MULTICSE_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    head = RayHead(jobs=True)
    del head.env["RAY_AUTH_MODE"]
    warm = Warm(clone, head.env)
    env = head.env_for_jobs | {"PATH": f"{warm.bin}:{head.env['PATH']}"}

    def run(command: str) -> subprocess.CompletedProcess[str]:
        for what, instead in STAND_INS.items():
            command = f"{command}\n".replace(what, instead).strip()
        return subprocess.run(["bash", "-c", command], cwd=clone, env=env, capture_output=True, text=True)

    try:
        for command in commands((ROOT / "README.md").read_text()):
            if command.startswith("ray start --head"):
                assert not (home / ".ray" / "auth_token").exists()
                head.start()
                continue
            done = run(command)
            assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        program = block.replace("/demo", "/smoke").replace("{", '{"run.num_workers": 0, ')
        environment = env | {"PYTHONPATH": str(clone)}
        done = subprocess.run([sys.executable, "-c", program], cwd=clone, env=environment, capture_output=True, text=True)
        assert done.returncode == 0 and "(1, 192)" in done.stdout, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        job = run("ray job submit --working-dir . -- python pipelines/sweep.py simcse --recipe smoke --trials 1")
        assert job.returncode == 0, f"{job.stdout[-4000:]}{job.stderr[-3000:]}"
    finally:
        warm.stop()
        head.kill()
    kept, (sweep,) = home / "multicse", (home / "multicse" / "runs").glob("sweep-*")
    first, *_, last = [line for line in job.stdout.splitlines() if line.startswith("results ")]
    assert str(sweep) in first and str(sweep) in last
    client = MlflowClient(f"sqlite:///{kept / 'mlflow.db'}")
    run_folder = kept / "runs" / "visualcse" / "smoke"
    for folder, model in {run_folder: run_folder / "export", sweep: sweep / "best" / "export"}.items():
        summary = json.loads((folder / "summary.json").read_text())
        assert (model / "model.safetensors").exists() and summary["export"] == str(model)
        logged = client.get_run(summary["mlflow_run_id"])
        assert logged.info.status == "FINISHED"
        assert {"export", "figures"} <= {file.path for file in client.list_artifacts(logged.info.run_id)}
    best = Recipe.from_json((sweep / "best.json").read_text())
    encoder = "multicse/models/small-bert-en"
    assert (best.streams["text"].shards, best.flat()["encoder.path"]) == ("runs/offline/text", encoder)
    assert (clone / "runs" / "visualcse" / "mine" / "export" / "model.safetensors").exists()
