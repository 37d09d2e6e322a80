"""Vectors and gradients of whole encoders on a GPU equal those on the CPU, in float32 and within bounds under autocast."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    CLIPTextConfig,
    DistilBertConfig,
    ElectraConfig,
    LlamaConfig,
    ModernBertConfig,
    MPNetConfig,
    PretrainedConfig,
    Qwen3Config,
    RobertaConfig,
)

from multicse.evaluation.encoders.encoder import ModuleEncoder, load_encoder
from multicse.models.packing import can_pack
from multicse.models.pooling import Pooling
from multicse.models.text_encoder import TextEncoder
from tests.gpu.compare import DTYPES, LIMITS, assert_close, gradients
from tests.models import tiny_encoder

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("precise")]
SIZES: dict[str, Any] = {"vocab_size": 25, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 256, "max_position_embeddings": 48, "initializer_range": 0.1, "pad_token_id": 0}
CAUSAL = SIZES | {"num_key_value_heads": 1, "head_dim": 64, "bos_token_id": 1, "eos_token_id": 2}
CLIP = {"vocab_size": 25, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 2}
CLIP |= {"max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
FAMILIES: dict[str, tuple[PretrainedConfig, Pooling]] = {
    "bert": (BertConfig(**SIZES), "pooler"),
    "roberta": (RobertaConfig(**SIZES), "mean"),
    "distilbert": (DistilBertConfig(vocab_size=25, dim=128, n_layers=3, n_heads=2, hidden_dim=256), "first-last"),
    "electra": (ElectraConfig(**SIZES, embedding_size=64), "mean"),
    "llama": (LlamaConfig(**CAUSAL), "lasttoken"),
    "qwen3": (Qwen3Config(**CAUSAL), "lasttoken"),
    "clip": (CLIPTextConfig(**CLIP), "lasttoken"),
    "mpnet": (MPNetConfig(**SIZES), "mean"),
    "modernbert": (ModernBertConfig(**SIZES, cls_token_id=2, bos_token_id=2, sep_token_id=3, eos_token_id=3), "mean"),
}
"""Configuration and pooling by model type. Heads have 64 dimensions, as most models do."""
CPU = torch.device("cpu")
INPUTS = ("ids", "word embeddings", "states of padding", "patches")
HALF = {"bf16": 6e-2, "fp16": 1e-2}
"""Bounds for three layers and their gradients; autocast on the CPU reaches half of them."""


def encoder(family: str, device: torch.device) -> TextEncoder:
    config, pooling = FAMILIES[family]
    config = copy.deepcopy(config)
    config._attn_implementation = None  # left by an earlier model
    made = tiny_encoder.encoder(pooling, config)
    if pooling == "pooler":
        made.add_head(only_trains=False)
    return made.eval().to(device)


def batch() -> tuple[Tensor, Tensor]:
    """Return token IDs and mask, (12, 40), of texts of 1 to 40 tokens that end with an end token."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([40, 1, 2, 17, 40, 5, 9, 33, 3, 1, 24, 12])[:, None]
    place = torch.arange(40)
    ids = torch.randint(5, 25, (12, 40), generator=generator).where(place != lengths - 1, 3)
    mask = (place < lengths).long()
    return ids * mask, mask


def outputs(made: TextEncoder, given: str, device: torch.device, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return vectors and token states without padding, and the gradients of all parameters."""
    ids, host_mask = batch()
    mask = host_mask.to(device)
    vectors = torch.randn(12, 40, 128, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    options: dict[str, Any] = {"attention_mask": mask, "host_mask": host_mask}
    if given == "patches":
        out = made.outputs(patches=vectors)
    elif given == "word embeddings":
        out = made.outputs(inputs_embeds=vectors, **options)
    else:
        out = made.outputs(ids.to(device), padding=given == "states of padding", **options)
    projected, tokens = made.project(out.pooled), out.tokens
    if given == "ids":  # CLIP computes its last layer for one token only
        projected = made.project(made.pooled(ids.to(device), mask, host_mask))
    if given in ("ids", "word embeddings"):
        tokens = tokens * mask[..., None]
    weights = torch.randn(12, 40, 128, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    ((projected * weights[:, 0]).sum() + (tokens * weights).sum()).backward()
    return {"vectors": projected, "tokens": tokens, **gradients(made)}


CASES = [(family, "ids") for family in FAMILIES]
CASES += [("bert", given) for given in INPUTS[1:]] + [("llama", "word embeddings"), ("modernbert", "patches")]


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(("family", "given"), CASES)
def test_vectors_and_gradients(family: str, given: str, precision: str, device: torch.device) -> None:
    """Texts of one token and of the maximum length are among them."""
    made = encoder(family, device)
    assert can_pack(made.model) == (family not in ("clip", "mpnet", "modernbert"))
    wanted = outputs(encoder(family, CPU).double(), given, CPU, torch.float64)
    with torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32"):
        found = outputs(made, given, device)
    assert_close(found, wanted, HALF.get(precision, LIMITS[torch.float32]))


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("family", ["bert", "llama", "mpnet"])
def test_encode(family: str, precision: str, device: torch.device, texts: list[str]) -> None:
    """The evaluation of a model in training: texts are sorted, batched and packed differently on a GPU."""
    made, wanted = encoder(family, device), encoder(family, CPU)

    def autocast() -> Any:
        return torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32")

    on_gpu = ModuleEncoder(made.tokenize, made, device, autocast=autocast).encode([*texts, ""])
    on_cpu = ModuleEncoder(wanted.tokenize, wanted).encode([*texts, ""])
    found, exact = ({"vectors": torch.from_numpy(vectors)} for vectors in (on_gpu, on_cpu))
    assert_close(found, exact, HALF.get(precision, LIMITS[torch.float32]))


def test_a_saved_model(device: torch.device, texts: list[str], tmp_path: Path) -> None:
    """Opened by sentence-transformers on each device, as the evaluation command does."""
    encoder("bert", device).save(str(tmp_path / "model"))
    found, wanted = (
        load_encoder(tmp_path / "model", device=place).encode(texts) for place in (device.type, "cpu")
    )  # fmt: skip
    assert_close({"v": torch.from_numpy(found)}, {"v": torch.from_numpy(wanted)}, LIMITS[torch.float32])


@pytest.mark.parametrize("precision", DTYPES)
def test_dropout_depends_on_the_seed_only(precision: str, device: torch.device) -> None:
    """Packed, in training, with gradients."""
    made = encoder("bert", device).train()

    def run(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        with torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32"):
            return outputs(made, "ids", device)

    first, other, again = run(1), run(2), run(1)
    assert torch.equal(first["vectors"], again["vectors"]) and not torch.equal(first["vectors"], other["vectors"])
    assert all(tensor.isfinite().all() for tensor in first.values())
    assert_close(again, first, 1e-2 if precision != "fp32" else 1e-5)
