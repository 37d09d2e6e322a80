"""Every pipeline's smoke recipe, through Ray Train: it trains, and leaves a model that loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pipelines import audiocse, clap, cyclip, gclsr, mocoutrl, nonlingcse, parts, pretrain, sgbert, simcse, visualcse
from pipelines.cli import parse, prepare, report
from trainers.carried import carries_code
from trainers.launch import fit


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    "pipeline",
    [simcse, visualcse, audiocse, nonlingcse, pretrain, sgbert, cyclip, clap, gclsr, mocoutrl],
    ids=lambda m: m.__name__,
)
def test_smoke(pipeline: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sentence_transformers import SentenceTransformer

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    recipe = parse(pipeline.RECIPES, "", ["smoke", "--run.output", str(tmp_path / "out"), "--run.tracking-uri", uri])
    prepare(recipe)
    make_start: Callable[..., None] = getattr(pipeline, "make_start", lambda recipe: None)
    make_start(recipe)
    summary = fit(recipe)
    assert summary["steps"] == 8 and summary["export"] == str(tmp_path / "out" / "export")
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
