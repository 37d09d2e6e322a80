"""SG-BERT through the engine: one and two texts a sample, the teacher outside the checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from multicse.data.pack import table_rows
from multicse.data.shard_writer import Output, pack
from multicse.pipelines import sgbert
from multicse.trainers.engine.checkpoint import latest_checkpoint, load_method
from multicse.trainers.engine.launch import resolve
from multicse.trainers.recipe import Recipe
from multicse.trainers.sgbert import SGBERT
from tests.small import WORDS, four_steps
from tests.trainers.engine.test_engine import run


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Shards of two columns."""
    folder = tmp_path_factory.mktemp("translated")
    rng = np.random.default_rng(0)
    rows = [" ".join(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(96)]
    table = folder / "rows.tsv"
    table.write_text("original\ttranslation\n" + "".join(f"{row}\t{' '.join(row.split()[::-1])}\n" for row in rows))
    pack(table_rows(table, ("original", "translation")), Output(folder / "shards", name="bt"))
    return str(folder / "shards")


@pytest.fixture
def guided(place: Path, translated: str, tmp_path: Path) -> Recipe:
    changes = {"method.head_width": 24, "encoder.path": str(place / "encoder"), "streams.text.shards": translated}
    changes |= {"streams.text.columns": ("original",), "evaluation.final": (), "run.tracking_uri": None}
    return four_steps(sgbert.smoke(), tmp_path, changes)


@pytest.mark.parametrize(("positive", "loss"), [("teacher", "opt3"), ("both", "opt3")])
def test_runs_and_leaves_the_student_alone_in_the_checkpoint(guided: Recipe, positive: str, loss: str) -> None:
    columns = ("original",) if positive == "teacher" else ("original", "translation")
    recipe = (
        guided.replace("method.loss", loss).replace("method.positive", positive).replace("streams.text.columns", columns)
    )
    memory, _, engine = run(recipe)
    method = engine.method
    assert isinstance(method, SGBERT)
    assert all(np.isfinite(memory.values[step]["train/text"]) for step in (1, 2, 3, 4))
    assert memory.values[1]["train/regularisation"] == 0 < memory.values[4]["train/regularisation"]
    checkpoint = latest_checkpoint(Path(recipe.run.output))
    for name in ("method", "best"):
        with safe_open(checkpoint / f"{name}.safetensors", "pt") as file:
            assert not [key for key in file.keys() if "teacher" in key]  # noqa: SIM118
    loaded = load_method(checkpoint)
    assert isinstance(loaded, SGBERT)
    for ours, theirs in zip(loaded.guide.teacher.parameters(), method.guide.teacher.parameters(), strict=True):
        assert torch.equal(ours, theirs)  # rebuilt from encoder.path


def test_tasks_on_files_of_ones_own(guided: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named relative to where the user is, found from where the workers are; the folder is no part of the identity."""
    own = guided.replace("evaluation.select", "pairs:pairs/own-dev.tsv")
    lines = [f"{' '.join(WORDS[i : i + 4])}\t{WORDS[i]}\t{i % 5}\n" for i in range(9)]
    recipes = []
    for place in ("one", "two"):
        folder = tmp_path / place
        (folder / "pairs").mkdir(parents=True)
        (folder / "pairs" / "own-dev.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(lines))
        monkeypatch.chdir(folder)
        recipes.append(resolve(own))
        assert recipes[-1].evaluation.select == f"pairs:{folder}/pairs/own-dev.tsv"
    assert len({recipe.replace("run.tracking_uri", None).identity() for recipe in recipes}) == 1
    monkeypatch.chdir(tmp_path)
    memory, result, _ = run(recipes[0])
    assert "eval/own-dev/spearman" in memory.values[2] and result["best_score"] is not None
