"""Test pretraining for a language without a BERT: the initial encoder and the tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from multicse.commands.api import write_inputs
from multicse.data.streams.base import Batch
from multicse.models.fresh_bert import train_wordpiece
from multicse.pipelines.pretrain import small
from multicse.trainers.recipe import Recipe, RecipeError
from tests.worlds import example, write_encoder, write_tar


def shards(folder: Path, *words: str) -> str:
    """Write shards without a dataset.json, of a size that does not depend on the words."""
    texts = ((f"{i:02d}.txt", f"{' '.join(words)} {i}".encode()) for i in range(20))
    return write_tar(folder / "text-train-000000.tar", texts)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    recipe = (
        small()
        .replace("streams.text.shards", shards(tmp_path / "en", "house", "tree"))
        .replace("run.output_dir", str(tmp_path))
    )
    return recipe.replace("method.fresh.vocab_size", 100).replace("encoder.path", str(tmp_path / "starts"))


def test_text_and_settings_decide_the_start(recipe: Recipe, tmp_path: Path) -> None:
    first = write_inputs(recipe)
    kept = {file: file.stat().st_mtime_ns for file in Path(first.encoder.path).iterdir()}  # type: ignore[union-attr]
    assert write_inputs(recipe) == write_inputs(first) == first  # recipe.json contains `first`
    assert kept == {file: file.stat().st_mtime_ns for file in kept}
    other = {
        "streams.text.shards": shards(tmp_path / "de", "Bäume", "über"),
        "method.fresh.vocab_size": 120,
        "method.fresh.width": 24,
        "method.fresh.lowercase": True,
        "run.seed": 2,
    }
    made = {path: write_inputs(first.replace(path, value)) for path, value in other.items()}
    places = {path: start.encoder.path for path, start in made.items()}  # type: ignore[union-attr]
    assert len({*places.values(), first.encoder.path}) == 6  # type: ignore[union-attr]
    assert len({start.identity() for start in (first, *made.values())}) == 6
    assert AutoConfig.from_pretrained(places["method.fresh.width"]).hidden_size == 24
    assert AutoTokenizer.from_pretrained(places["streams.text.shards"]).tokenize("über Bäume") == ["über", "Bäume"]
    shutil.rmtree(tmp_path / "starts")
    assert write_inputs(recipe) == first, "the initial encoder does not depend on folder or time"


def test_the_loss_is_the_mean_over_the_tokens_of_all_workers(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    started = write_inputs(recipe)
    method: Any = started.method.build(started.encoder.load(()))
    sums = {"loss": torch.tensor([6.0, 2.0]), "correct": torch.tensor([1.0, 0.0]), "chosen": torch.tensor([2.0, 2.0])}
    other = {"loss": torch.tensor([3.0]), "correct": torch.tensor([1.0]), "chosen": torch.tensor([1.0])}
    monkeypatch.setattr("multicse.trainers.pretrain.world_size", lambda: 2)
    monkeypatch.setattr("multicse.trainers.pretrain.gather", lambda _: torch.tensor([2.0, 2.0, 1.0]))
    outputs = [method.losses({"text": features}, {}) for features in (sums, other)]
    assert sum(output.losses["mlm"] for output in outputs).item() / 2 == pytest.approx(11 / 5)
    assert sum(output.metrics["masked_accuracy"] for output in outputs).item() / 2 == pytest.approx(100 * 2 / 5)


def test_tsdae_starts_from_the_same_encoder(recipe: Recipe) -> None:
    """Text, settings and seed decide it, not the method; one step of the method runs on it."""
    other = example("tsdae").scratch().changed({"streams": recipe.streams, "encoder": recipe.encoder, "run": recipe.run})
    other = write_inputs(other.replace("method.fresh.vocab_size", 100))
    assert other.encoder == write_inputs(recipe).encoder
    encoder: Any = other.encoder.load([])
    batch = Batch({name: tokens[:, None] for name, tokens in encoder.tokenize(["house tree", "tree 7"]).items()})
    other.method.build(encoder)({"text": batch}).losses["reconstruction"].backward()
    assert encoder.model.get_input_embeddings().weight.grad.abs().sum() > 0


def test_an_existing_encoder_is_not_replaced(recipe: Recipe, tmp_path: Path) -> None:
    there = recipe.replace("encoder.path", write_encoder(tmp_path / "bert"))
    with pytest.raises(RecipeError, match=r"encoder\.path.*further"):
        write_inputs(there)
    assert write_inputs(there.replace("method.fresh", None)).encoder == there.encoder


def test_the_same_text_gives_the_same_tokenizer() -> None:
    """Also where more characters and equally frequent pairs of them exist than the vocabulary has room for."""
    rng = np.random.default_rng(0)
    rare = [chr(0xAC00 + number) for number in range(1500)]
    texts = ["abcdefgh" + "".join(rng.choice(rare, 6)) for _ in range(2000)] * 2
    first, *others = [train_wordpiece(iter(texts), 2500).backend_tokenizer.to_str() for _ in range(4)]
    assert others == [first] * 3
    kept = [piece for piece in json.loads(first)["model"]["vocab"] if len(piece) == 1]
    assert len(kept) == 1000 and {*"abcdefgh"} <= {*kept}


@pytest.mark.parametrize(("lowercase", "want"), [(False, ["Äpfel", "über", "Bäume"]), (True, ["äpfel", "über", "bäume"])])
def test_umlauts_and_accents_are_kept(lowercase: bool, want: list[str]) -> None:
    tokenizer = train_wordpiece(["Äpfel über Bäume", "äpfel über bäume"] * 3, 200, lowercase)
    assert tokenizer.tokenize("Äpfel über Bäume") == want
