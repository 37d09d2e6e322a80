"""Test docs/how-to/custom-stream.md: a stream and a tower in a user's file are read, trained, exported and found by name."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from multicse import plugins
from multicse.commands.registry import load
from multicse.commands.run import main
from multicse.trainers.recipe import Recipe, RecipeError
from tests.conftest import ROOT
from tests.evaluation.paired_helpers import image_shards

FILE = ROOT / "examples/new_tower.py"


def recipe() -> Recipe:
    made: Recipe = load(str(FILE)).RECIPES["smoke"]()
    return made


def test_the_page_shows_the_file() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/custom-stream.md").read_text(), re.S)
    assert len(blocks) == 3 and all(block.strip("\n") in FILE.read_text() for block in blocks)


def test_settings_are_found_by_name_and_travel_with_their_file() -> None:
    made = recipe()
    again = Recipe.from_json(made.to_json())
    assert type(again.streams["pairs"]).__name__ == "ShortCaptionStream" and again.method.tower.kind == "beit"  # type: ignore[attr-defined]
    assert made.changed({"streams.pairs.deletion": "0.5"}).streams["pairs"].deletion == 0.5  # type: ignore[attr-defined]
    # A process that reads data has neither the file nor the module.
    script = "import pickle, sys; print(repr(pickle.load(sys.stdin.buffer)))"
    sent = pickle.dumps(made.streams["pairs"])
    reader = subprocess.run([sys.executable, "-c", script], input=sent, capture_output=True, cwd=ROOT)
    assert reader.stdout.decode().strip() == repr(made.streams["pairs"]), reader.stderr.decode()[-2000:]


def test_unknown_and_taken_names_are_refused() -> None:
    content = recipe().model_dump()
    content["streams"]["pairs"]["kind"] = "short_caption"
    with pytest.raises(RecipeError, match=r"streams.pairs: .*'short_caption'\. Did you mean 'short_captions'\?.*run.* FILE"):
        Recipe.checked(content)
    stream = plugins.get("stream", "short_captions")
    nameless = type("Nameless", (stream,), {"__module__": stream.__module__})
    with pytest.raises(RecipeError, match=r"Nameless has the kind 'short_captions' of ShortCaptionStream"):
        Recipe.checked({**recipe().model_dump(), "streams": {"pairs": nameless(**recipe().streams["pairs"].model_dump())}})


def test_it_trains_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image
    from sentence_transformers import SentenceTransformer

    shards = image_shards(tmp_path / "pairs", [[f"caption {i}"] for i in range(32)])
    words = [
        "--streams.pairs.shards",
        str(shards),
        "--evaluation.select",
        "None",
        "--evaluation.final",
        "--run.num_workers",
        "0",
    ]
    words += [
        "--run.report_to",
        "none",
        "--run.output_dir",
        "run",
        "--run.max_steps",
        "2",
        "--streams.pairs.batch_size",
        "8",
    ]
    monkeypatch.setattr(sys, "argv", ["pipelines/run.py", str(FILE), "smoke", *words, "--method.tower.layers", "1"])
    monkeypatch.chdir(tmp_path)
    assert main() == 0
    model = SentenceTransformer("run/export", device="cpu")
    assert model.encode([Image.new("RGB", (64, 64))]).shape == model.encode(["a cat"]).shape == (1, 128)
