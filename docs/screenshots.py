"""The pictures of docs/explore.md, from runs of its own: ``python docs/screenshots.py``. It takes minutes, and Chromium."""

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

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
SMALL = ROOT / "models" / "small-bert-en"
STORE = "sqlite:///mlflow.db"
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
RUN = ["visualcse.py", "demo", "--run.workers", "0", "--run.max_steps", "100", "--evaluation.every", "10"]
SWEEP = ["sweep.py", "visualcse", "--recipe", "smoke", "--trials", "3", "--evaluation.every", "2"]
CLIP = ["cyclip.py", "demo", "--run.workers", "0", "--run.max_steps", "150", "--run.output", "runs/clip"]
QUERY = "a fast animal with a long tail"


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
    """Write what the page shows when it has come to rest, in 64 colours."""
    page.wait_for_timeout(1000 * seconds)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    picture.save(IMAGES / f"{name}.png", optimize=True)
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size / 1000:.0f} kB")


def runs(page: Any, folder: Path, port: int = 5051) -> None:
    """A run's page and curves, and the trials of a sweep."""
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
                nested = "mlflow.parentRunId" in run.data.tags
                kind = "sweep" if run.info.run_name.startswith("sweep") else "run"
                print(experiment.name, run.info.run_name, kind, "nested" if nested else "")
                if nested or "clip" in experiment.name:
                    continue
                place = f"{url}/#/experiments/{experiment.experiment_id}"
                page.goto(f"{place}/runs/{run.info.run_id}")
                shot(page, kind, 8)
                if kind == "run":
                    page.goto(f"{place}/runs/{run.info.run_id}/model-metrics")
                    shot(page, "run-curves", 8)
                else:
                    page.goto(f"{place}/runs?orderByKey=metrics.%60best%2Flee-dev%2Fspearman%60&orderByAsc=false")
                    shot(page, "sweep-trials", 8)


def explorer(page: Any, folder: Path) -> None:
    """Every view of the explorer."""
    models = ["--model", "runs/visualcse/demo/export", "--against", os.path.relpath(SMALL, folder)]
    sets = ["--data", "runs/offline/text", "runs/offline/emoji-test", "--most", "1000"]
    with server(folder, ROOT / "pipelines" / "explore.py", *models, *sets) as process:
        assert process.stdout is not None
        look(page, process.stdout.readline().strip(), QUERY, "explore-nearest")
        for view in ("Worst pairs", "Alignment and uniformity"):
            page.get_by_text(view).click()
            page.get_by_text("computing").wait_for(state="detached", timeout=300_000)
            shot(page, f"explore-{view.split()[0].lower()}")
    with server(folder, ROOT / "pipelines" / "explore.py", "--model", "runs/clip/export", *sets[:1], sets[2]) as process:
        assert process.stdout is not None
        look(page, process.stdout.readline().strip(), "a red heart", "explore-pictures")


def look(page: Any, url: str, sentence: str, name: str) -> None:
    """What is near a sentence."""
    page.goto(url)
    box = page.get_by_label("Sentence")
    box.fill(sentence, timeout=120_000)
    box.press("Enter")
    page.get_by_text("searched").first.wait_for(timeout=300_000)
    page.get_by_text("computing").wait_for(state="detached", timeout=300_000)
    shot(page, name)


def main(folder: Path) -> None:
    """Train what is not there yet, then take all pictures."""
    os.environ |= QUIET
    IMAGES.mkdir(exist_ok=True)
    if not (folder / "runs").exists():
        for command in (RUN, SWEEP, CLIP):
            python(folder, *command)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        explorer(page, folder)
        runs(page, folder)
        browser.close()


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as place:
            main(Path(place))
