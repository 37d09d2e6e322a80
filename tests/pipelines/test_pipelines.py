"""A smoke recipe through Ray Train: it trains, and leaves a model that loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.carried_code import carries_code
from pipelines import clap, parts
from pipelines.cli import parse, prepare, report
from trainers.engine.launch import fit


@pytest.mark.cluster
@pytest.mark.usefixtures("local_ray")
def test_smoke_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs with sounds, whose export carries code; tests/golden has every recipe in one process."""
    from sentence_transformers import SentenceTransformer

    monkeypatch.chdir(tmp_path)
    settings = ["--run.output", "run", "--run.tracking-uri", f"sqlite:///{tmp_path / 'mlflow.db'}", "--run.workers", "1"]
    recipe = parse(clap.RECIPES, "", ["smoke", *settings])
    prepare(recipe)
    summary = fit(recipe)
    assert summary["steps"] == 8 and summary["export"] == str(tmp_path / "run" / "export")
    assert carries_code(Path(summary["export"]))
    model = SentenceTransformer(summary["export"], device="cpu", trust_remote_code=True)
    assert len(model.encode("a sentence")) > 0
    text = report(summary)
    assert "trust_remote_code" in text and "before" in text and summary["mlflow_run_id"] in text
    assert summary["after"].keys() == summary["before"].keys() and summary["after"]
    assert all(any(line.startswith(f"{task} ") for line in text.splitlines()) for task in summary["after"])


def test_the_shipped_encoder_is_small_and_says_where_it_comes_from() -> None:
    folder = Path(parts.SMALL_ENCODER)
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 10 * 2**20
    card = (folder / "README.md").read_text()
    for word in ("masked accuracy", "STS-B dev", "licence", "steps"):
        assert word.lower() in card.lower()
    assert not list(folder.rglob("*.bin"))
