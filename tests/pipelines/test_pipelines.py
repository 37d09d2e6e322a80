"""Every pipeline's smoke recipe, in this process and through Ray Train: it trains, and leaves a model that loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from models.carried_code import carries_code
from pipelines import audiocse, clap, cyclip, gclsr, mocoutrl, nonlingcse, parts, pretrain, sgbert, simcse, visualcse
from pipelines.cli import parse, prepare, report
from trainers.engine.launch import fit

ALL = [simcse, visualcse, audiocse, nonlingcse, pretrain, sgbert, cyclip, clap, gclsr, mocoutrl]
EVERY_STREAM = [visualcse, clap, mocoutrl]
"""Text, images, pairs with sounds, and triplets."""


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    "pipeline",
    # Half a minute each, nearly all of which is Ray Train's start and end.
    [pytest.param(module, marks=[] if module in EVERY_STREAM else [pytest.mark.cluster]) for module in ALL],
    ids=lambda m: m.__name__,
)
def test_smoke_on_ray(pipeline: ModuleType, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smoke(pipeline, place, monkeypatch, "1")


@pytest.mark.parametrize("pipeline", [module for module in ALL if module not in EVERY_STREAM], ids=lambda m: m.__name__)
def test_smoke_in_this_process(pipeline: ModuleType, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smoke(pipeline, place, monkeypatch, "0")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all run, one after the other, as a user does: packed shards are there from the run before."""
    return tmp_path_factory.mktemp("smoke")


def smoke(pipeline: ModuleType, place: Path, monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    from sentence_transformers import SentenceTransformer

    monkeypatch.chdir(place)
    output = place / f"{pipeline.__name__}-{workers}"
    uri = f"sqlite:///{place / 'mlflow.db'}"
    settings = ["--run.output", str(output), "--run.tracking-uri", uri, "--run.workers", workers]
    recipe = parse(pipeline.RECIPES, "", ["smoke", *settings])
    prepare(recipe)
    make_start: Callable[..., None] = getattr(pipeline, "make_start", lambda recipe: None)
    make_start(recipe)
    summary = fit(recipe)
    assert summary["steps"] == 8 and summary["export"] == str(output / "export")
    own_code = carries_code(Path(summary["export"]))
    assert own_code == (pipeline in (cyclip, clap, gclsr))
    model = SentenceTransformer(summary["export"], device="cpu", trust_remote_code=own_code)
    assert len(model.encode("a sentence")) > 0
    text = report(summary)
    assert ("trust_remote_code" in text) == own_code
    assert "before" in text and summary["mlflow_run_id"] in text
    assert summary["after"].keys() == summary["before"].keys() and summary["after"]
    assert all(any(line.startswith(f"{task} ") for line in text.splitlines()) for task in summary["after"])


def test_the_shipped_encoder_is_small_and_says_where_it_comes_from() -> None:
    folder = Path(parts.SMALL_ENCODER)
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 10 * 2**20
    card = (folder / "README.md").read_text()
    for word in ("masked accuracy", "STS-B dev", "licence", "steps"):
        assert word.lower() in card.lower()
    assert not list(folder.rglob("*.bin"))
