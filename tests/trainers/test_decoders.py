"""Models for text generation and prompts, compared with sentence-transformers; patches in models of other families.

All models are small and random.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st
from transformers import (
    AlbertConfig,
    AutoModelForCausalLM,
    CLIPTextConfig,
    ElectraConfig,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    MPNetConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from multicse.models import packing
from multicse.models.adapters import LoRASettings, add_adapters
from multicse.models.config import EncoderConfig
from multicse.models.packing import can_pack
from multicse.models.text_encoder import TextEncoder
from multicse.trainers.engine import launch
from multicse.trainers.engine.checks import check_recipe
from multicse.trainers.nonling import NonLingCSEConfig
from multicse.trainers.recipe import Recipe
from tests.models import tiny_encoder
from tests.models.test_model_folders import PROMPTS, saved, tokenizer
from tests.worlds import AUDIO, IMAGE, text_only

SIZES: dict[str, Any] = {"vocab_size": 25, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 24, "initializer_range": 0.3, "pad_token_id": 0}
CAUSAL = SIZES | {"num_key_value_heads": 1, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2}
DECODERS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**CAUSAL),
    "qwen2": Qwen2Config(**CAUSAL),
    "qwen3": Qwen3Config(**CAUSAL),
    "mistral": MistralConfig(**CAUSAL, sliding_window=3),
}
OTHERS: dict[str, PretrainedConfig] = {
    "albert": AlbertConfig(**SIZES, embedding_size=8),
    "electra": ElectraConfig(**SIZES, embedding_size=8),
    "modernbert": ModernBertConfig(**SIZES, cls_token_id=2, bos_token_id=2, sep_token_id=3, eos_token_id=3),
    "mpnet": MPNetConfig(**SIZES),
    "qwen3": DECODERS["qwen3"],
}
TEXTS = ["a dog runs", "the cat eats in the small park", "guitar", " ".join(["big man plays"] * 12), ""]


def decoder(folder: Path, kind: str, side: str = "right") -> str:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(DECODERS[kind]).save_pretrained(folder)
    tokenizer(padding_side=side).save_pretrained(folder)
    return str(folder)


def theirs(folder: str | Path, **options: Any) -> np.ndarray:
    return SentenceTransformer(str(folder), device="cpu", **options).encode(TEXTS, batch_size=5)


def training(recipe: Recipe, folder: str, changes: dict[str, Any]) -> Recipe:
    own = {"encoder.path": folder, "encoder.pooling": None, "streams.text.max_length": 24, "optim.text.lr": 1e-2}
    return text_only(recipe).changed({**own, **changes})


@torch.no_grad()
def ours(encoder: TextEncoder) -> np.ndarray:
    return encoder.eval()(encoder.tokenize(TEXTS)).numpy()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", DECODERS)
def test_the_last_token_is_pooled_as_in_sentence_transformers(
    kind: str, side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With padding as the tokenizer has it, packed or not; Mistral's window is not packed."""
    folder = decoder(tmp_path / "model", kind, side)
    model = SentenceTransformer(modules=[st.Transformer(folder), st.Pooling(16, "lasttoken")], device="cpu")
    want = model.encode(TEXTS, batch_size=5)
    encoder = TextEncoder.from_pretrained(folder)
    assert (encoder.pooling, can_pack(encoder.model)) == ("lasttoken", kind != "mistral")
    assert encoder.tokenize(TEXTS)["attention_mask"][0, 0] == (side == "right")
    assert np.abs(ours(encoder) - want).max() < 1e-5
    encoder.save(str(tmp_path / "out"))
    assert np.abs(theirs(tmp_path / "out") - want).max() < 1e-5
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu").tokenizer.padding_side == side
    monkeypatch.setattr(packing, "PACKED", set())
    assert np.abs(ours(TextEncoder.from_pretrained(folder)) - want).max() < 1e-5
    with pytest.raises(ValueError, match=r"encoder\.pooling='cls'.*lasttoken"):
        EncoderConfig(path=folder, pooling="cls").read()


def test_adapters_are_in_all_linear_layers(tmp_path: Path) -> None:
    encoder = TextEncoder.from_pretrained(decoder(tmp_path, "llama"))
    add_adapters(encoder.model, LoRASettings(rank=2))
    adapted = {name.split(".")[-4] for name, p in encoder.model.named_parameters() if p.requires_grad}
    assert adapted == {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"encoder.lora.rank": 2, "encoder.lora.dropout": 0.1, "run.gradient_checkpointing": True}),
        ("qwen2", {"encoder.attention_dropout": 0.1, "encoder.prompt": "the big ", "run.mini_batch_size": 5}),
    ],
)
def test_decoders_train_and_export(kind: str, changes: dict[str, Any], recipe: Recipe, tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", kind, "left")
    recipe = training(recipe, folder, changes)
    assert launch.run_recipe(recipe)["steps"] == 6
    export = Path(recipe.run.output_dir) / "export"
    before, after = theirs(folder), theirs(export)
    assert np.abs(after - ours(TextEncoder.from_pretrained(str(export)))).max() < 1e-5
    assert np.abs(after - before).max() > 1e-2


def test_equal_views_are_reported(recipe: Recipe, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipe = training(recipe, decoder(tmp_path / "model", "qwen3"), {})
    for dropout in (None, 0.1):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            check_recipe(recipe.replace("encoder.attention_dropout", dropout))
        assert ("both views of a sentence are equal" in caplog.text) == (dropout is None)


@pytest.mark.parametrize("include", [True, False])
def test_a_prompt_is_used_as_in_sentence_transformers(include: bool, tmp_path: Path) -> None:
    folder, prompt = str(saved(tmp_path / "model")), "the small "
    model = SentenceTransformer(folder, device="cpu")
    model[1].include_prompt = include
    want = model.encode(TEXTS, prompt=prompt)
    config = EncoderConfig(path=folder, prompt=prompt, include_prompt=include)
    assert config.read().tokens_beside == 4  # <s> the small </s>
    encoder = config.load(())
    assert np.abs(ours(encoder) - want).max() < 1e-5
    encoder.save(str(tmp_path / "out"))
    export = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert export.prompts == {"query": prompt, "document": prompt} and export.default_prompt_name == "query"
    for encode in (export.encode, export.encode_query, export.encode_document):
        assert np.abs(encode(TEXTS) - want).max() < 1e-5
    assert prompt in encoder.card(tmp_path).notes
    none = EncoderConfig(path=str(tmp_path / "out"), prompt="").load(())
    assert np.abs(ours(none) - model.encode(TEXTS)).max() < 1e-5


def test_a_prompt_replaces_the_default_of_the_folder_and_an_option_without_one_is_refused(tmp_path: Path) -> None:
    encoder = EncoderConfig(path=str(saved(tmp_path / "model", **PROMPTS)), prompt="the ").load(())
    assert encoder.conventions.prompt == "the " and encoder.conventions.prompts["passage"] == "a "
    with pytest.raises(ValueError, match=r"encoder\.include_prompt=False.*encoder\.prompt"):
        EncoderConfig(path=str(saved(tmp_path / "other")), include_prompt=False).read()


@pytest.mark.parametrize("kind", OTHERS)
def test_patches_take_the_place_of_word_embeddings(kind: str) -> None:
    config = NonLingCSEConfig(image=IMAGE, audio=AUDIO)
    encoder = tiny_encoder.encoder("mean", OTHERS[kind])
    method: Any = config.build(encoder).eval()
    batch = tiny_encoder.image_batch(3)
    patches = method.patches["image"](batch["image"].flatten(0, 1))
    assert patches.shape[1:] == (5, 8 if kind in ("albert", "electra") else 16)
    mask = torch.ones(patches.shape[:2], dtype=torch.long)
    states = encoder.model(inputs_embeds=patches, attention_mask=mask).last_hidden_state
    place = 4 if kind == "qwen3" else 0  # the first token of a decoder attends to itself only
    torch.testing.assert_close(
        method.encode("image", batch)["views"].flatten(0, 1), method.heads["image"](states[:, place]), rtol=0, atol=1e-5
    )
    out = method.train()({"image": batch, "audio": tiny_encoder.audio_batch(3)})
    torch.stack(list(out.losses.values())).sum().backward()
    gradient = method.patches["image"].embeddings.position_embeddings.grad
    assert (gradient.abs().sum(-1) > 0).all()  # every patch counts


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CLIPTextConfig(**{name: SIZES[name] for name in SIZES if name != "initializer_range"}), "inputs_embeds"),
        (ElectraConfig(**SIZES | {"max_position_embeddings": 4}), "4 positions cannot process the 5 tokens"),
    ],
)
def test_models_that_cannot_process_patches_are_refused(
    config: PretrainedConfig, message: str, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EncoderConfig, "read", lambda self: config)
    with pytest.raises(ValueError, match=f"encoder.path: .*{message}"):
        check_recipe(recipe)
