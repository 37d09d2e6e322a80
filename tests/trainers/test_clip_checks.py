"""Recipes of CLIP, CyCLIP and CLAP that the driver refuses, and its error messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    BertConfig,
    CLIPConfig,
    CLIPTextConfig,
    CLIPVisionConfig,
    DistilBertConfig,
    PretrainedConfig,
)

from multicse.data.streams.pairs import AudioTextStream, ImageTextStream
from multicse.data.streams.text import TextStream
from multicse.trainers import clip
from multicse.trainers.engine.checks import check_recipe, check_settings
from multicse.trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RecipeError
from tests.models import tiny_encoder
from tests.worlds import TOWER, write_tar

LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def clip_config(**text: Any) -> CLIPConfig:
    vision = CLIPVisionConfig(**{**LAYERS, "hidden_size": 8}, image_size=8, patch_size=4)
    return CLIPConfig(
        text_config=CLIPTextConfig(**LAYERS, **text).to_dict(), vision_config=vision.to_dict(), projection_dim=6
    )


def saved(folder: Path, config: PretrainedConfig) -> str:
    """Save a folder with unreadable weights, since the checks must not read them."""
    config.vocab_size = len(tiny_encoder.SPECIAL + tiny_encoder.WORDS)
    config.save_pretrained(folder)
    tiny_encoder.tokenizer().save_pretrained(folder)
    (folder / "model.safetensors").touch()
    return str(folder)


def shards(folder: Path, fields: dict[str, bytes], classes: tuple[str, ...] = ()) -> str:
    write_tar(folder / "x-000.tar", ((f"{i}.{name}", content) for i in range(4) for name, content in fields.items()))
    listed = {"url": "x-000.tar", "nsamples": 4, "fields": list(fields)}
    (folder / "dataset.json").write_text(json.dumps({"shardlist": [listed], "classes": classes}))
    return str(folder)


def recipe(tmp_path: Path, encoder: EncoderConfig, **method: Any) -> Recipe:
    config = clip.CLIPConfig(**{"tower": TOWER, "embed_dim": 6, **method})
    audio = config.tower.modality == "audio"
    place = shards(tmp_path / "pairs", {"wav" if audio else "png": b"", "txt": b"a"})
    pairs: Any = AudioTextStream if audio else ImageTextStream
    streams: dict[str, Any] = {"pairs": pairs(shards=place, batch_size=2, max_length=24, input=config.tower.input)}
    (wanted,) = config.updates().values()
    for name in wanted[1:]:
        streams[name] = TextStream(shards=shards(tmp_path / name, {"txt": b"a"}), batch_size=2, max_length=24)
    return Recipe(
        name="cyclip/test",
        method=config,
        encoder=encoder,
        streams=streams,
        optim={"+".join(streams): OptimConfig()},
        lead="pairs",
        evaluation=EvaluationConfig(select=None),
    )


def refused(checked: Recipe, setting: str) -> None:
    with pytest.raises(RecipeError, match="^" + re.escape(setting)):
        check_recipe(checked)


@pytest.mark.parametrize(
    ("classes", "right"),
    [
        (("dog", "cat", "red fox"), False),  # another order
        (("cat", "dog"), False),  # one is missing
        (("Cat", "dog", "red fox"), True),
        (("Katze", "Hund", "Fuchs"), True),
    ],
)
def test_captions_name_the_classes_of_the_shards(tmp_path: Path, classes: tuple[str, ...], right: bool) -> None:
    saved(tmp_path / "bert", tiny_encoder.bert_config())
    place = shards(tmp_path / "labelled", {"png": b"", "cls": b"0", "kind": b"0"}, ("cat", "dog", "red_fox"))
    stream = {"kind": "image_text", "shards": place, "batch_size": 2, "input": TOWER.input.model_dump()}
    stream |= {"templates": ("a {}",), "classes": classes, "max_length": 24}
    made = recipe(tmp_path, EncoderConfig(path=str(tmp_path / "bert")))
    if right:
        check_recipe(made.replace("streams.pairs", stream))
    else:
        refused(made.replace("streams.pairs", stream), "streams.pairs.classes")
    check_recipe(made.replace("streams.pairs", {**stream, "label": "kind"}))  # the shards contain no class names for it


def bert(hidden: float, attention: float) -> BertConfig:
    return BertConfig(**LAYERS, hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)


DROPOUTS: dict[str, tuple[PretrainedConfig, dict[str, Any], bool]] = {
    "clip": (clip_config(), {}, False),
    "clip, its own attention": (clip_config(attention_dropout=0.1), {}, True),
    "clip, adapters": (clip_config(), {"lora": {"rank": 2, "dropout": 0.1}}, True),
    "bert": (bert(0.1, 0.1), {}, True),
    "distilbert": (DistilBertConfig(dim=16, n_layers=1, n_heads=2, dropout=0.1, attention_dropout=0.0), {}, True),
}


@pytest.mark.parametrize("case", DROPOUTS)
def test_simcse_needs_dropout(tmp_path: Path, case: str) -> None:
    config, settings, enough = DROPOUTS[case]
    made = recipe(tmp_path, EncoderConfig(path=saved(tmp_path / "text", config), **settings), captions=0.1)
    if enough:
        check_recipe(made)
    else:
        refused(made, "method.captions")


def test_released_requires_clips_text_transformer(tmp_path: Path) -> None:
    path = saved(tmp_path / "bert", bert(0.1, 0.1))
    made = recipe(tmp_path, EncoderConfig(path=path), variant="released")
    refused(made, "encoder.path")
    check_recipe(made.replace("method.variant", "fixed"))
    check_recipe(made.replace("method.variant", "paper"))
    check_recipe(made.replace("encoder.path", saved(tmp_path / "clip", clip_config())))


def test_projections_of_folders(tmp_path: Path) -> None:
    """The projections of text and tower are checked without their weights; randomly initialised ones may have any size."""
    path = saved(tmp_path / "clip", clip_config())
    text = recipe(tmp_path / "text", EncoderConfig(path=path))
    bert_folder = EncoderConfig(path=saved(tmp_path / "bert", bert(0.1, 0.1)))
    tower = recipe(tmp_path / "tower", bert_folder, tower=TOWER.model_copy(update={"path": path}))
    for setting, made in {"encoder.path": text, "method.tower.path": tower}.items():
        check_recipe(made)
        refused(made.replace("method.embed_dim", 7), setting)
        refused(made.replace("method.projection", "mlp"), setting)
    check_recipe(text.replace("method.embed_dim", 7).replace("encoder.scratch", True))
    half = saved(tmp_path / "half", clip_config().text_config)  # without a projection, or with one that is not read
    check_recipe(text.replace("method.embed_dim", 7).replace("encoder.path", half))


def test_a_method_needs_a_loss_between_items_and_captions(tmp_path: Path) -> None:
    made = recipe(tmp_path, EncoderConfig(path="x"))
    check_settings(made.replace("run.mini_batch_size", 2))  # a resnet refuses it, a ViT has no BatchNorm
    with pytest.raises(RecipeError, match=r"^method"):
        check_settings(made.replace("method.contrastive", 0.0))
