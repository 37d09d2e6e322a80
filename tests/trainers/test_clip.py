"""CLIP, CyCLIP and CLAP compared with transformers and with formulas written as loops, and their variants compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    CLIPConfig as HFConfig,
)
from transformers import (
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
)

from multicse.data.streams.base import Batch
from multicse.data.streams.inputs import ImageInput
from multicse.models.text_encoder import TextEncoder
from multicse.models.towers import ViTTower
from multicse.trainers.clip import CLIP, CLIPConfig
from tests.models import tiny_encoder
from tests.worlds import TOWER

WORDS = len(tiny_encoder.SPECIAL + tiny_encoder.WORDS)
TEXT = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}


def text_config(**changes: object) -> CLIPTextConfig:
    settings = {"vocab_size": WORDS, "max_position_embeddings": 24, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    return CLIPTextConfig(**TEXT, **settings, **changes)


def ended(batch: Batch) -> Batch:
    """Return the texts with [SEP] (3) as their last token, which transformers looks for."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    last = mask.cumsum(-1) == mask.sum(-1, keepdim=True)
    return batch.replace(input_ids=torch.where(last & mask.bool(), 3, ids))


def method(config: CLIPConfig, dropout: float = 0.0) -> CLIP:
    encoder = tiny_encoder.encoder("mean", tiny_encoder.bert_config(dropout=dropout))
    return config.build(encoder)


@pytest.fixture
def clip_folder(tmp_path: Path) -> str:
    torch.manual_seed(0)
    vision = CLIPVisionConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    model = CLIPModel(HFConfig(text_config=text_config().to_dict(), vision_config=vision.to_dict(), projection_dim=6))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    model.logit_scale.data.fill_(1.5)
    model.save_pretrained(tmp_path)
    tiny_encoder.tokenizer().save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_clip_folder_has_the_vectors_loss_and_logits_of_transformers(clip_folder: str) -> None:
    theirs = CLIPModel.from_pretrained(clip_folder).eval()
    tower = ViTTower(input=ImageInput(size=8), path=clip_folder)
    encoder = TextEncoder.from_pretrained(clip_folder)
    assert encoder.pooling == "lasttoken"
    ours = CLIPConfig(tower=tower, embed_dim=6).build(encoder).eval()
    batch = ended(tiny_encoder.pair_batch(5))
    ids, mask, image = batch["input_ids"][:, 0], batch["attention_mask"][:, 0], batch["image"][:, 0]
    out = theirs(input_ids=ids, attention_mask=mask, pixel_values=image, return_loss=True)
    features = ours.encode("pairs", batch)
    torch.testing.assert_close(features["items"], out.image_embeds, atol=1e-5, rtol=0)
    torch.testing.assert_close(features["texts"][:, 0], out.text_embeds, atol=1e-5, rtol=0)
    scale = ours.sentence_encoder.scale
    assert scale.item() == pytest.approx(torch.tensor(1.5).exp().item())
    torch.testing.assert_close(
        scale * features["items"] @ features["texts"][:, 0].T, out.logits_per_image, atol=1e-5, rtol=0
    )
    loss = ours({"pairs": batch}).losses["contrastive"]
    assert loss.item() == pytest.approx(out.loss.item(), abs=1e-5)
    learned: list[Tensor] = [ours.sentence_encoder.logit_scale, *ours.sentence_encoder.text_projection.parameters()]
    ours_grads = torch.autograd.grad(loss, learned)
    theirs_grads = torch.autograd.grad(out.loss, [theirs.logit_scale, theirs.text_projection.weight])
    torch.testing.assert_close(ours_grads, theirs_grads, atol=1e-5, rtol=1e-4)


def test_clip_text_dropout_follows_the_setting(clip_folder: str) -> None:
    batch = tiny_encoder.text_batch(4)
    ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    for hidden, attention in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.3)):
        encoder = TextEncoder.from_pretrained(clip_folder, hidden_dropout=hidden, attention_dropout=attention)
        encoder.train()
        differ = not torch.equal(encoder.pooled(ids, mask), encoder.pooled(ids, mask))
        assert differ == bool(hidden or attention), (hidden, attention)
        encoder.eval()
        assert torch.equal(encoder.pooled(ids, mask), encoder.pooled(ids, mask))
        assert encoder.model.state_dict().keys() == TextEncoder.from_pretrained(clip_folder).model.state_dict().keys()


def test_released_truncates_the_end_token_of_long_texts() -> None:
    """CyCLIP truncates tokens including the end of the text, and uses the largest ID as the end."""
    texts = ["a dog runs in the park", "the happy woman plays guitar on the street"]
    fixed = CLIPConfig(tower=TOWER).build(tiny_encoder.encoder("lasttoken")).sentence_encoder.tokenize(texts, max_length=6)
    assert fixed["input_ids"][:, -1].tolist() == [3, 3]
    config = CLIPConfig(tower=TOWER, variant="released")
    released = config.build(tiny_encoder.encoder("lasttoken")).sentence_encoder.tokenize(texts, max_length=6)
    assert 3 not in released["input_ids"]
    for ids, mask in zip(released["input_ids"], released["attention_mask"], strict=True):
        assert ids[mask.sum() - 1] == ids.max()
    roberta = config.build(tiny_encoder.encoder("mean")).sentence_encoder.tokenize(texts, max_length=6)
    assert roberta["input_ids"][:, -1].tolist() == [3, 3]  # CLAP does not pool at the end token


def test_the_scale_is_clamped_and_logged() -> None:
    built = method(CLIPConfig(tower=TOWER, embed_dim=6))
    for start, end in ((9.0, 100.0), (-1.0, 1.0), (2.0, 7.389056)):
        built.sentence_encoder.logit_scale.data.fill_(start)
        built.after_step(1)
        assert built({"pairs": tiny_encoder.pair_batch(3)}).metrics["logit_scale"].item() == pytest.approx(end, rel=1e-5)
    groups = built.param_groups("pairs")
    assert any(p is built.sentence_encoder.logit_scale for p in groups["biases_and_norms"])  # no weight decay
