"""SG-BERT: losses, the frozen teacher, and differences between the variants."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    DebertaV2Config,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PretrainedConfig,
)

from multicse.data.streams.base import Batch
from multicse.models.pooling import Pooling, pooled_layers
from multicse.trainers.sgbert import SGBERT, SGBERTConfig
from tests.models import tiny_encoder
from tests.models.test_text_encoder import CONFIGS

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32,
         "max_position_embeddings": 26, "pad_token_id": 0}  # fmt: skip
FAMILIES: dict[str, PretrainedConfig] = {
    **CONFIGS,
    "deberta-v3": DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], conv_kernel_size=3),
    "mpnet": MPNetConfig(**SIZES),
    "electra": ElectraConfig(**SIZES, embedding_size=8),
    "modernbert": ModernBertConfig(**SIZES, cls_token_id=2, bos_token_id=2, sep_token_id=3, eos_token_id=3),
}


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def sgbert(dropout: float = 0.0, config: PretrainedConfig | None = None, **settings: object) -> SGBERT:
    encoder = tiny_encoder.encoder(config=config or tiny_encoder.bert_config(dropout))
    return SGBERTConfig.model_validate({"head_width": 24, **settings}).build(encoder)


def text(batch: Batch, column: int = 0) -> dict[str, Tensor]:
    return {name: tokens[:, column] for name, tokens in batch.tensors.items()}


def fingerprint(module: nn.Module | None) -> str:
    assert module is not None
    values = [*module.named_parameters(), *module.named_buffers()]
    return hashlib.sha256(b"".join(name.encode() + t.detach().numpy().tobytes() for name, t in values)).hexdigest()


def contrast(u: np.ndarray, v: np.ndarray, temperature: float, among: bool = False) -> list[float]:
    """Return the terms of a loss of anchors u (b, d) with positives v (b, K, d); `among`: anchors are negatives, too."""
    u, v = (z / np.linalg.norm(z, axis=-1, keepdims=True) for z in (u, v))
    found = []
    for i in range(len(u)):
        others = [j for j in range(len(u)) if j != i]
        below = np.exp(v[others] @ u[i] / temperature).sum() + among * np.exp(u[others] @ u[i] / temperature).sum()
        own = np.exp(v[i] @ u[i] / temperature)
        found += [-math.log(one / (one + below)) for one in own]
    return found


def _expected(method: SGBERT, batch: Batch, positives: Tensor) -> Tensor:
    """Compute the loss from the student's [CLS] and given positives (B, K, d), both after the head."""
    encoder = method.sentence_encoder
    c = method.guide.head(encoder.model(**text(batch)).last_hidden_state[:, 0]).numpy()
    h = method.guide.head(positives).numpy()
    terms = contrast(c, h, 0.2, among=method.config.loss in ("sg", "opt1"))
    if method.config.loss == "sg":
        terms += contrast(h[:, 0], c[:, None], 0.2, among=True)
    return torch.tensor(np.mean(terms))


def _teacher_layers(method: SGBERT, tokens: dict[str, Tensor]) -> Tensor:
    """Return all hidden states of BERT_F (B, l + 1, d), the maximum over tokens without padding."""
    states = method.guide.teacher(**tokens, output_hidden_states=True).hidden_states
    rows = range(len(tokens["input_ids"]))
    lengths = tokens["attention_mask"].sum(1).tolist()
    return torch.stack([torch.stack([layer[i, : lengths[i]].max(0).values for layer in states]) for i in rows])


@pytest.mark.parametrize("positive", ["teacher", "both"])
@pytest.mark.parametrize("loss", ["sg", "opt1", "opt2", "opt3"])
@torch.no_grad()
def test_inputs_of_each_copy_and_loss(loss: str, positive: str) -> None:
    """BERT_T encodes the text; BERT_F encodes the same text, or its translation (BT + SG-OPT)."""
    first = 1 if loss == "opt3" else 2  # of layers 0 to 2: two, or only the last if one is drawn
    method = sgbert(loss=loss, positive=positive, first_layer=first, temperature=0.2).double()
    for p in method.sentence_encoder.model.parameters():
        if p.requires_grad:
            p += 0.05 * torch.randn_like(p)  # the copies must differ
    batch = tiny_encoder.text_batch(5, views=method.config.texts)
    views = _teacher_layers(method, text(batch, column=-1))[:, first:]
    close(method({"text": batch}).losses["text"], _expected(method, batch, views))


@torch.no_grad()
def test_back_translation_differs_from_sg_only_in_the_positives() -> None:
    """BT (A.2): BERT_T encodes both texts in one forward pass, base NT-Xent, and L_reg as in SG."""
    method = sgbert(loss="sg", positive="translation", temperature=0.2).double()
    batch = tiny_encoder.text_batch(5, views=2)
    trained = [p for p in method.sentence_encoder.model.parameters() if p.requires_grad]
    for p in trained:
        p += 0.05
    translations = method.sentence_encoder.model(**text(batch, 1)).last_hidden_state[:, :1]
    out = method({"text": batch}).losses
    close(out["text"], _expected(method, batch, translations))
    close(out["regularisation"], torch.tensor(0.05**2 * sum(p.numel() for p in trained)).double())


def test_layers_are_drawn_uniformly_per_sentence() -> None:
    method = sgbert(loss="opt2", first_layer=1, head_width=0)
    batch = tiny_encoder.text_batch(200)
    views = _teacher_layers(method, text(batch))

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        h = method.encode("text", batch)["h"]
        assert h.shape == (200, 1, 16)
        return (h - views).abs().amax(-1).argmin(1)

    layer = drawn(0)
    assert set(layer.tolist()) == {1, 2}
    assert (layer == 1).float().mean().item() == pytest.approx(0.5, abs=0.15)  # 4 standard deviations
    assert torch.equal(drawn(0), layer) and not torch.equal(drawn(1), layer)


def test_disagree_3_1_released_default_is_mean_pooling() -> None:
    """[errata 3.1] Paper and fixed: max over tokens; the released code's default: mean."""
    batch = tiny_encoder.text_batch(5)
    views = {}
    for variant in ("paper", "released", "fixed"):
        method = sgbert(variant=variant, head_width=0)
        views[variant] = method.encode("text", batch)["h"]
        pooling: Pooling = "mean" if variant == "released" else "max"
        ids, mask = text(batch).values()
        assert torch.equal(views[variant], pooled_layers(method.guide.teacher, ids, mask, pooling))
    assert torch.equal(views["paper"], views["fixed"]) and not torch.allclose(views["paper"], views["released"])
    asked = sgbert(variant="released", pooling="max", head_width=0)
    assert torch.equal(asked.encode("text", batch)["h"], views["paper"])


def test_disagree_3_4_released_opt2_loses_a_negative() -> None:
    """[errata 3.4] h_0, or h_1 for the first anchor."""
    c, h = torch.randn(2, 4, 16)
    logits = torch.cosine_similarity(c[:, None], h[None], dim=2) / 0.1
    terms = []
    for i, row in enumerate(logits.double()):
        kept = [j for j in range(4) if j == i or j != (1 if i == 0 else 0)]
        terms.append(math.log(sum(math.exp(row[j]) for j in kept)) - row[i].item())
    method = sgbert(variant="released", loss="opt2", temperature=0.1)
    close(method.guide.loss(c, h[:, None]), torch.tensor(np.mean(terms), dtype=torch.float32))


def test_teacher_is_constant_and_not_trained() -> None:
    """It has no gradients, optimizer groups or checkpoint entries, and shares the frozen embeddings with the student."""
    method = sgbert(dropout=0.1)
    before, layer0 = fingerprint(method.guide.teacher), fingerprint(method.sentence_encoder.embeddings)
    optimizer = torch.optim.AdamW(method.parameters(), lr=1e-2)
    torch.stack([*method.train()({"text": tiny_encoder.text_batch(6)}).losses.values()]).sum().backward()
    optimizer.step()
    assert fingerprint(method.guide.teacher) == before and fingerprint(method.sentence_encoder.embeddings) == layer0
    trained = {id(p) for params in method.param_groups("text").values() for p in params}
    own = {id(p) for p in (*method.sentence_encoder.model.encoder.parameters(), *method.guide.head.parameters())}
    assert trained == own and not any("teacher" in name for name in method.state_dict())
    shared = {p.data_ptr() for p in method.sentence_encoder.embeddings.parameters()}
    assert {p.data_ptr() for p in method.guide.teacher.get_submodule("embeddings").parameters()} == shared


@pytest.mark.parametrize(
    ("settings", "wakes"),
    [
        ({"variant": "fixed"}, False),
        ({"variant": "released"}, True),
        ({"variant": "released", "teacher_dropout": False}, False),
        ({"variant": "fixed", "teacher_dropout": True}, True),
    ],
)
def test_disagree_3_2_released_training_enables_dropout_of_the_teacher(settings: dict[str, Any], wakes: bool) -> None:
    """[errata 3.2] The views of a text never change, except in the released code."""
    method = sgbert(dropout=0.1, head_width=0, **settings)
    batch = tiny_encoder.text_batch(5)

    def twice() -> bool:
        return torch.equal(method.encode("text", batch)["h"], method.encode("text", batch)["h"])

    method.train()
    assert twice() is not wakes
    method.eval()
    assert twice()


def test_layers_that_share_weights_cannot_be_trained() -> None:
    with pytest.raises(ValueError, match="'albert'"):
        sgbert(config=AlbertConfig(**SIZES, embedding_size=8))
