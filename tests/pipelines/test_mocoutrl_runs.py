"""MoCoUTRL and GCLSR through the engine: what a checkpoint holds, a run that goes on, vectors of a run's own sentences."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel

from multicse.data.pack import text_lines
from multicse.data.shard_writer import Output, pack
from multicse.data.streams.text import EDATextStream
from multicse.data.word_vectors import open_vectors, write_vectors
from multicse.evaluation.load import load_model
from multicse.pipelines import gclsr, mocoutrl, parts
from multicse.pipelines.cli import report
from multicse.trainers.engine.checkpoint import latest_checkpoint, load_method
from multicse.trainers.engine.checks import check, check_settings
from multicse.trainers.engine.launch import fit
from multicse.trainers.engine.text_fit import prepare
from multicse.trainers.mocoutrl import MoCoUTRL
from multicse.trainers.recipe import Recipe, RecipeError
from tests.small import four_steps, write_text
from tests.small_wordnet import write_wordnet
from tests.trainers.engine.test_engine import interrupted, run


def short(recipe: Recipe, folder: Path, changes: dict[str, Any]) -> Recipe:
    """On shards of a few words, nothing evaluated."""
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


def test_a_resumed_run_has_the_same_losses_and_dictionary(
    triplets: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dictionary is the moving average of the tables that each step left behind, from the encoder's own on."""
    tables: list[torch.Tensor] = []
    move = MoCoUTRL.after_step

    def recorded(method: MoCoUTRL, step: int) -> None:
        tables.append(method.table.weight.detach().clone())
        move(method, step)

    whole, _, engine = run(triplets)
    half = triplets.replace("run.output", str(tmp_path / "half"))
    monkeypatch.setattr(MoCoUTRL, "after_step", recorded)
    interrupted(half)
    resumed, _, after = run(half)
    assert sorted(resumed.values) == [3, 4]
    for step, name in product((3, 4), ("train/long", "train/token")):
        assert resumed.values[step][name] == whole.values[step][name]
    assert isinstance(engine.method, MoCoUTRL) and isinstance(after.method, MoCoUTRL) and len(tables) == 4
    assert torch.equal(engine.method.dictionary, after.method.dictionary)
    own = AutoModel.from_pretrained(parts.SMALL.path).get_input_embeddings().weight.detach().double()
    for table in tables:
        own = 0.9 * own + 0.1 * table.double()
    assert (after.method.dictionary - own).abs().max() < 1e-6 < (own - tables[-1]).abs().max()


def test_a_mean_with_padding_wants_200_positions(triplets: Recipe, tmp_path: Path) -> None:
    def with_positions(number: int) -> Recipe:
        sizes = {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": number}
        AutoConfig.for_model("bert", **sizes).save_pretrained(tmp_path / "encoder")
        return triplets.replace("encoder.path", str(tmp_path / "encoder")).replace("encoder.scratch", True)

    check(with_positions(199))
    with pytest.raises(RecipeError, match=r"method\.mean_with_padding"):
        check(with_positions(199).replace("method.mean_with_padding", True))
    check(with_positions(200).replace("method.mean_with_padding", True))


def test_a_missing_wordnet_is_found_before_the_run(
    triplets: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = triplets.replace("streams.text.lexicon", None)
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    check_settings(recipe)  # which reads no file
    with pytest.raises(RecipeError, match=r"streams\.text\.lexicon=None: .*WNSEARCHDIR="):
        check(recipe)
    monkeypatch.setenv("WNSEARCHDIR", str(write_wordnet(tmp_path / "wordnet")))
    check(recipe)


def test_a_resumed_run_of_word_vectors(words: Recipe, tmp_path: Path) -> None:
    prepare(words)
    whole, _, _ = run(words)
    half = words.replace("run.output", str(tmp_path / "half"))
    prepare(half)
    first, second = (open_vectors(Path(recipe.run.output) / "vectors") for recipe in (words, half))
    assert first.words == second.words and np.array_equal(first.vectors, second.vectors)
    interrupted(half)
    resumed, _, _ = run(half)
    assert [resumed.values[step]["train/text"] for step in (3, 4)] == [whole.values[step]["train/text"] for step in (3, 4)]
    assert not [name for name in load_file(latest_checkpoint(tmp_path / "half") / "method.safetensors") if "table" in name]


def test_a_checkpoint_is_not_loaded_with_other_vectors(words: Recipe, tmp_path: Path) -> None:
    """Moved with its run, its vectors are found; with the vectors of another run, or none, it is refused."""
    prepare(words)
    run(words)
    moved = tmp_path / "moved"
    Path(words.run.output).rename(moved)
    found: Any = load_method(moved / "checkpoint").sentence_encoder
    assert found.words == open_vectors(moved / "vectors").words
    other = words.replace("run.output", str(tmp_path / "other")).replace("run.seed", 7)
    prepare(other)
    (moved / "vectors").rename(tmp_path / "kept")
    with pytest.raises(ValueError, match="OUTPUT/vectors"):
        load_method(moved / "checkpoint")
    (tmp_path / "other" / "vectors").rename(moved / "vectors")
    with pytest.raises(ValueError, match=r"encoder\.vectors"):
        load_method(moved / "checkpoint")


def test_sentences_of_another_script_are_noticed(words: Recipe, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ru.txt").write_text("кошка спит\nсобака бежит\n" * 20)
    pack(text_lines([tmp_path / "ru.txt"]), Output(tmp_path / "ru", name="ru"))
    russian = words.replace("streams.text.shards", str(tmp_path / "ru"))
    with pytest.raises(ValueError, match=r"encoder\.letters"):
        prepare(russian)
    folder = write_vectors(tmp_path / "en", ["the", "dog"], np.eye(2, dtype=np.float32))
    prepare(russian.replace("encoder.letters", "any").replace("encoder.vectors", str(folder)))
    assert "100 % of the words" in caplog.text


@pytest.mark.parametrize("eda", [False, True])
def test_from_sentences_to_an_export(words: Recipe, tracking_uri: str, eda: bool) -> None:
    """Vectors of the run's own sentences, training, export, registry, card; with EDA the two views come from the stream."""
    if eda:
        stream = EDATextStream(shards=words.streams["text"].shards, batch_size=8, window=32, max_length=16, lexicon="small")
        words = words.replace("streams.text", stream.model_dump()).replace("method.augmentation", "none")
    words = words.replace("run.tracking_uri", tracking_uri).replace("run.register_as", "words")
    summary = fit(words)
    export = Path(summary["export"])
    note = json.loads((Path(words.run.output) / "vectors" / "vectors.json").read_text())
    assert note["letters"] == "a-z" and note["seed"] == words.run.seed
    assert load_model(str(export)).encode(["the dog runs", "unheard"]).shape == (2, 12)
    card = (export / "README.md").read_text()
    assert "trust_remote_code=True" in card and "AutoModel" not in card and "--encoder.path" not in card
    assert "word vectors" in card and "trust_remote_code" in report(summary)
