"""Test `pipelines/explore.py`: search against naive loops, the page without a browser, and the page in Chromium."""

from __future__ import annotations

import io
import math
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from multicse.commands.explore import Hit, index_set, nearest, script, worst_pairs
from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.report import evaluate
from multicse.evaluation.tasks.paired_items import Samples
from multicse.evaluation.tasks.sts import Pairs, PairTask
from tests.conftest import ROOT
from tests.evaluation.evaluation_helpers import Bag, rated, tiny_bert, write_raw
from tests.evaluation.multimodal_helpers import tiny_clip
from tests.evaluation.paired_helpers import Coded, image_shards, picture
from tests.worlds import write_text

CAPTIONS = [["7", "one 1"], ["2 two"], ["a 7"], ["3"], ["again 7", "4"]]
"""Captions of images 0 to 4; `Coded` encodes a text by its number."""


def naive(rows: list[tuple[Any, str, np.ndarray]], query: np.ndarray, k: int) -> list[tuple[float, str]]:
    """Return cosine and text of the k best owners of (owner, text, vector), by plain loops."""
    best: dict[Any, tuple[float, str]] = {}
    for owner, text, vector in rows:
        dot, lengths = sum(a * b for a, b in zip(vector, query, strict=True)), math.hypot(*vector) * math.hypot(*query)
        if owner not in best or dot / lengths > best[owner][0]:
            best[owner] = (dot / lengths, text)
    return sorted(best.values(), key=lambda found: -found[0])[:k]


def named(model: Any) -> Any:
    """Give a model the attribute `name` of loaded models."""
    model.name = "model"
    return model


def same(hits: list[Hit], want: list[tuple[float, str]]) -> None:
    assert [hit.text for hit in hits] == [text for _, text in want]
    assert [hit.cosine for hit in hits] == pytest.approx([cosine for cosine, _ in want])


def test_the_nearest_sentences(tmp_path: Path) -> None:
    samples, model = Samples("x", write_text(tmp_path)), Bag()
    texts = [sample.item for chunk in samples.chunks() for sample in chunk][:70]
    query = model.encode(["the old house"])[0]
    rows = [(text, text, model.encode([text])[0]) for text in texts]
    same(nearest(index_set(named(model), samples, 70), query, 5), naive(rows, query, 5))


def test_the_nearest_images_by_embedding_and_by_caption(tmp_path: Path) -> None:
    samples, model = Samples("x", image_shards(tmp_path, CAPTIONS)), Coded()
    query = model.vector(7) + 0.1 * model.vector(4)
    captions = [(i, text, model.vector(model.number(text))) for i, several in enumerate(CAPTIONS) for text in several]
    hits = nearest(index_set(named(model), samples, 99), query, 4)
    same(hits, naive(captions, query, 4))
    assert [hit.sample for hit in hits[:3]] == [0, 2, 4]
    pictures = [(i, " / ".join(several), model.vector(i)) for i, several in enumerate(CAPTIONS)]
    model.modalities = ("text", "image")  # type: ignore[attr-defined]
    query = model.vector(3)
    same(nearest(index_set(named(model), samples, 99), query, 4), naive(pictures, query, 4))


def test_the_worst_pairs() -> None:
    rng = np.random.default_rng(0)
    gold, cosines = rng.integers(0, 6, 40) / 2, np.round(rng.random(40), 1)
    sides = [[f"{side} {i}" for i in range(40)] for side in "ab"]
    task = PairTask("x", Pairs(tuple(sides[0]), tuple(sides[1]), tuple(gold.tolist()), ("all",) * 40))

    def rank(values: np.ndarray, i: int) -> float:
        return sum(v < values[i] for v in values) + (sum(v == values[i] for v in values) + 1) / 2

    off = {i: (rank(cosines, i) - rank(gold, i)) / 40 * 100 for i in range(40)}
    want = sorted(off, key=lambda i: -abs(off[i]))[:7]
    found = worst_pairs(task, cosines, 7)
    assert found["off"].tolist() == pytest.approx([off[i] for i in want])
    assert found["sentence 1"].tolist() == [f"a {i}" for i in want] and found["sentence 2"].tolist() == [
        f"b {i}" for i in want
    ]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("explore")
    (folder / "sts").mkdir()
    write_raw(folder / "sts" / "STSB.dev.raw.tsv", [("5", "a dog runs", "the dog runs"), *rated(30)])
    content = ("png", large)
    shards = image_shards(folder / "pictures", [[f"a {word}"] for word in ("dog", "cat", "car")], content=content)
    return {
        "bert": tiny_bert(folder / "bert"), "clip": tiny_clip(folder / "clip"), "sts": folder / "sts",
        "pictures": shards, "text": Path(write_text(folder / "text")),
    }  # fmt: skip


def large(number: int) -> bytes:
    """A picture that CLIP's processor takes."""
    data = io.BytesIO()
    Image.open(io.BytesIO(picture(80 * number))).resize((20, 20)).save(data, "PNG")
    return data.getvalue()


def arguments(inputs: dict[str, Path]) -> list[str]:
    models = ["--model", str(inputs["bert"]), "--against", str(inputs["clip"]), "--device", "cpu"]
    return [*models, "--data", str(inputs["text"]), str(inputs["pictures"]), "--evaluation.data", str(inputs["sts"])]


def test_the_page(inputs: dict[str, Path]) -> None:
    """All views of two models show the scores of an evaluation."""
    testing = pytest.importorskip("streamlit.testing.v1", reason="streamlit is not installed (pip install -e '.[explore]')")
    page = testing.AppTest.from_string(script(arguments(inputs)), default_timeout=120).run()
    assert not page.exception and not page.dataframe
    page.text_input[0].set_value("a dog").run()
    assert not page.exception and not page.error
    model, samples = load_encoder(inputs["bert"], device="cpu"), Samples("x", inputs["text"])
    same_as = nearest(index_set(model, samples, 2000), model.encode(["a dog"])[0], 6)
    assert page.dataframe[0].value["text"].tolist() == [hit.text for hit in same_as]
    (by_caption, by_picture) = page.get("image")
    assert by_caption.captions[0] == "1.000 a dog"
    assert sorted(text.split(maxsplit=1)[1] for text in by_picture.captions) == ["a car", "a cat", "a dog"]

    page.sidebar.radio[0].set_value("Worst pairs").run()
    (task,) = make_tasks(["stsb-dev"], inputs["sts"])
    assert isinstance(task, PairTask)
    worst = worst_pairs(task, task.similarities(model))
    assert page.dataframe[0].value["sentence 1"].tolist() == worst["sentence 1"].tolist()

    page.sidebar.radio[0].set_value("Alignment and uniformity").run()
    assert not page.exception and len(page.get("image")) == 1
    want = evaluate(make_tasks(["stsb-dev", "stsb-dev-geometry"], inputs["sts"]), model)
    shown = page.dataframe[0].value.loc[str(inputs["bert"])]
    assert shown["spearman"] == pytest.approx(want["stsb-dev"]["spearman"], abs=1e-3)
    assert shown["uniformity"] == pytest.approx(want["stsb-dev-geometry"]["uniformity"], abs=1e-3)
    assert page.dataframe[0].value.shape == (2, 4)


@pytest.mark.cluster
def test_the_page_in_chromium(inputs: dict[str, Path]) -> None:
    """Run the command in a new process. It sends no request to another machine, and Ctrl-C ends it without a message."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install -e '.[test]')")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    command = [sys.executable, str(ROOT / "pipelines" / "explore.py"), *arguments(inputs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            with playwright.sync_playwright() as play:
                browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                page = browser.new_page()
                requested: list[str] = []
                page.on("request", lambda request: requested.append(request.url))
                page.goto(url)
                box = page.get_by_label("Sentence")
                box.fill("a dog", timeout=120_000)
                box.press("Enter")
                page.get_by_text("1.000 a dog").wait_for(timeout=120_000)
                page.get_by_text("Alignment and uniformity").click()
                page.get_by_text("1.000 a dog").wait_for(state="detached", timeout=120_000)
                figure = page.locator("img").first
                figure.wait_for(timeout=120_000)
                assert figure.evaluate("image => image.decode().then(() => image.naturalWidth)") > 300
                assert {urlsplit(one).hostname for one in requested if not one.startswith("data:")} == {"127.0.0.1"}
                server.send_signal(signal.SIGINT)
                assert server.wait(30) == 0
                browser.close()
            assert server.stderr is not None and server.stdout.read() == ""
            assert server.stderr.read() == ""
        finally:
            server.kill()
