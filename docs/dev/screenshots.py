"""Make the screenshots of runs, sweeps and vectors: ``python docs/dev/screenshots.py``. It takes minutes, and Chromium."""

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
from urllib.parse import quote

from mlflow import MlflowClient
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
STORE = "sqlite:///mlflow.db"
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
RUN = ["visualcse.py", "demo", "--run.num_workers", "0"]
SHORT = ["--run.max_steps", "60", "--evaluation.eval_steps", "20"]
SWEEP = ["sweep.py", "visualcse", "--recipe", "demo", "--trials", "4", "--scheduler", "none", *SHORT]
SCORE = "best/lee-dev/spearman"
SIZE: Any = {"width": 1280, "height": 1000}
NO_ASSISTANT = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
ITS_BUTTON = "button => button.textContent.includes('Assistant')"


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
    page.evaluate(f"[...document.querySelectorAll('button')].filter({ITS_BUTTON}).forEach(button => button.remove())")
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
        page.add_init_script(NO_ASSISTANT)
        page.goto(url)
        page.get_by_text("Model training", exact=True).first.click(timeout=60_000)
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
                    page.goto(f"{place}/runs?orderByKey=metrics.%60{quote(SCORE, '')}%60&orderByAsc=false")
                    page.get_by_role("button", name="Columns").click(timeout=60_000)
                    page.keyboard.type(SCORE)
                    page.locator("[class*=tree-checkbox-inner]").last.click()  # the first one is of all metrics
                    page.keyboard.press("Escape")
                    page.set_viewport_size({"width": 1600, "height": 560})  # wide enough for the score, the last column
                    shot(page, "sweep-trials")
                    page.set_viewport_size(SIZE)


def vectors(page: Any, folder: Path) -> None:
    """The page of examples/explore.py, with the encoder before and after the run."""
    for name, model in (("before", ROOT / "models" / "small-bert-en"), ("after", "runs/demo/export")):
        python(folder, "embed.py", model, "runs/offline/text", "--out", name)
    subprocess.run([sys.executable, ROOT / "examples" / "explore.py", "before", "after"], cwd=folder, check=True)
    page.goto(f"file://{folder}/page.html")
    page.set_viewport_size({"width": 1280, "height": 500})
    shot(page, "explore")


def main(folder: Path) -> None:
    """Train what is not there yet, then take all pictures."""
    os.environ |= QUIET
    IMAGES.mkdir(exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        for command in (RUN, SWEEP):
            python(folder, *command)
        runs(page, folder)
        vectors(page, folder)
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
