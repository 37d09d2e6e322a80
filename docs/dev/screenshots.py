"""Make the screenshots of runs and sweeps: ``python docs/dev/screenshots.py``. It takes minutes, and Chromium."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
STORE = "sqlite:///mlflow.db"
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
RUN = ["visualcse.py", "smoke", "--run.num_workers", "0", "--run.max_steps", "40", "--evaluation.eval_steps", "5"]
SWEEP = ["sweep.py", "visualcse", "--recipe", "smoke", "--trials", "3", "--evaluation.eval_steps", "2"]


def python(folder: Path, *command: str | Path) -> None:
    """Run a script of pipelines/."""
    subprocess.run([sys.executable, ROOT / "pipelines" / command[0], *command[1:]], cwd=folder, check=True)


@contextlib.contextmanager
def server(folder: Path, *command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A server, ended with the block."""
    with subprocess.Popen([sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def shot(page: Any, name: str, seconds: float = 3) -> None:
    """Write what the page shows when it has come to rest, in 192 colours."""
    page.wait_for_timeout(1000 * seconds)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(192, dither=Image.Dither.NONE)
    picture.save(IMAGES / f"{name}.png", optimize=True)
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size / 1000:.0f} kB")


def runs(page: Any, folder: Path, port: int = 5051) -> None:
    """The pages of a run and of a sweep, and the sweep's trials."""
    url = f"http://127.0.0.1:{port}"
    with server(folder, "-m", "mlflow", "ui", "--backend-store-uri", STORE, "--port", str(port), "--workers", "1"):
        for _ in range(120):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health")
                break
            time.sleep(1)
        client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
        for experiment in client.search_experiments():
            for run in client.search_runs([experiment.experiment_id]):
                if "mlflow.parentRunId" in run.data.tags:
                    continue
                kind = "sweep" if run.info.run_name.startswith("sweep") else "run"
                place = f"{url}/#/experiments/{experiment.experiment_id}"
                page.goto(f"{place}/runs/{run.info.run_id}")
                shot(page, kind, 8)
                if kind == "sweep":
                    page.goto(f"{place}/runs?orderByKey=metrics.%60best%2Flee-dev%2Fspearman%60&orderByAsc=false")
                    shot(page, "sweep-trials", 8)


def main(folder: Path) -> None:
    """Train what is not there yet, then take all pictures."""
    os.environ |= QUIET
    IMAGES.mkdir(exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        for command in (RUN, SWEEP):
            python(folder, *command)
        runs(page, folder)
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
