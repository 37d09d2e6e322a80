"""Test MoCoUTRL and GCLSR in the engine: checkpoints, word vectors trained on the sentences of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import AutoConfig

from multicse.commands.cli import report
from multicse.data.pack import text_lines
from multicse.data.shard_writer import Target, pack
from multicse.data.word_vectors import open_vectors
from multicse.evaluation.load import load_model
from multicse.pipelines import gclsr, mocoutrl
from multicse.reproduction.streams.eda import EDATextStream
from multicse.trainers.engine.checkpoint import latest_checkpoint, load_method
from multicse.trainers.engine.checks import check_recipe, check_settings
from multicse.trainers.engine.launch import run_recipe
from multicse.trainers.engine.text_fit import prepare_encoder
from multicse.trainers.recipe import Recipe, RecipeError
from tests.models.tiny_encoder import tokenizer
from tests.worlds import four_steps, run, write_text


def short(recipe: Recipe, folder: Path, changes: dict[str, Any]) -> Recipe:
    """Return a recipe on small shards, without evaluation."""
    text = {"shards": write_text(folder / "text"), "batch_size": 8, "window": 32}
    settings = {f"streams.text.{name}": value for name, value in text.items()}
    nothing = {"evaluation.select": None, "evaluation.watch": (), "evaluation.final": ()}
    return four_steps(recipe, folder, {**settings, **nothing, "run.tracking_uri": None, **changes})


@pytest.fixture
def triplets(tmp_path: Path) -> Recipe:
    return short(mocoutrl.smoke(), tmp_path, {"method.momentum": 0.9, "streams.text.without_candidate": "keep"})


@pytest.fixture
def words(tmp_path: Path) -> Recipe:
    small: dict[str, Any] = {"method.width": 16, "method.bottleneck": 8, "method.group_size": 4, "encoder.dim": 10}
    small |= {"encoder.filters": 4, "encoder.regions": (1, 1, 3), "encoder.max_words": 16, "streams.text.max_length": 16}
    return short(gclsr.smoke(), tmp_path, small)


def test_a_mean_with_padding_needs_200_positions(triplets: Recipe, tmp_path: Path) -> None:
    def with_positions(number: int) -> Recipe:
        sizes = {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": number}
        AutoConfig.for_model("bert", **sizes).save_pretrained(tmp_path / "encoder")
        words = tokenizer()
        words.model_max_length = number
        words.save_pretrained(tmp_path / "encoder")
        return triplets.replace("encoder.path", str(tmp_path / "encoder")).replace("encoder.scratch", True)

    check_recipe(with_positions(199))
    with pytest.raises(RecipeError, match=r"method\.mean_with_padding"):
        check_recipe(with_positions(199).replace("method.mean_with_padding", True))
    check_recipe(with_positions(200).replace("method.mean_with_padding", True))


def test_a_missing_lexicon_is_found_before_the_run(
    triplets: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = triplets.replace("streams.text.lexicon", None)
    monkeypatch.chdir(tmp_path)
    check_settings(recipe)  # does not read files
    with pytest.raises(RecipeError, match=r"streams\.text\.lexicon=None: .*wordnet\.sqlite does not exist; make one"):
        check_recipe(recipe)


def test_a_checkpoint_is_not_loaded_with_other_vectors(words: Recipe, tmp_path: Path) -> None:
    """A moved run finds its vectors; a checkpoint with vectors of another run or without vectors is refused."""
    prepare_encoder(words)
    run(words)
    weights = load_file(latest_checkpoint(Path(words.run.output_dir)) / "method.safetensors")
    assert not [name for name in weights if "table" in name]
    moved = tmp_path / "moved"
    Path(words.run.output_dir).rename(moved)
    found: Any = load_method(moved / "checkpoint").sentence_encoder
    assert found.words == open_vectors(moved / "vectors").words
    other = words.replace("run.output_dir", str(tmp_path / "other")).replace("run.seed", 7)
    prepare_encoder(other)
    (moved / "vectors").rename(tmp_path / "kept")
    with pytest.raises(ValueError, match="OUTPUT/vectors"):
        load_method(moved / "checkpoint")
    (tmp_path / "other" / "vectors").rename(moved / "vectors")
    with pytest.raises(ValueError, match=r"encoder\.vectors"):
        load_method(moved / "checkpoint")


def test_sentences_of_another_script_are_noticed(words: Recipe, tmp_path: Path) -> None:
    (tmp_path / "ru.txt").write_text("кошка спит\nсобака бежит\n" * 20)
    pack(text_lines([tmp_path / "ru.txt"]), Target(tmp_path / "ru", name="ru"))
    russian = words.replace("streams.text.shards", str(tmp_path / "ru"))
    with pytest.raises(ValueError, match=r"encoder\.letters"):
        prepare_encoder(russian)


def test_from_sentences_to_an_export(words: Recipe, tracking_uri: str) -> None:
    """Train word vectors on the sentences of the run, then train with two views by EDA, export, register, write the card."""
    stream = EDATextStream(shards=words.streams["text"].shards, batch_size=8, window=32, max_length=16, lexicon="small")
    changes = {"streams.text": stream, "method.augmentation": "none", "run.register_as": "words"}
    summary = run_recipe(words.changed({**changes, "run.tracking_uri": tracking_uri}))
    export = Path(summary["export"])
    note = json.loads((export.parent / "vectors" / "vectors.json").read_text())
    assert note["letters"] == "a-z" and note["seed"] == words.run.seed
    assert load_model(str(export)).encode(["the dog runs", "unheard"]).shape == (2, 12)
    card = (export / "README.md").read_text()
    assert "trust_remote_code=True" in card and "AutoModel" not in card and "--encoder.path" not in card
    assert "word vectors" in card and "trust_remote_code" in report(summary)
