"""CLIP, CyCLIP and CLAP compared with transformers and with formulas written as loops, and their variants compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
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
from multicse.trainers import losses
from multicse.trainers.clip import CLIP, CLIPConfig
from tests.models import tiny_encoder

WORDS = len(tiny_encoder.SPECIAL + tiny_encoder.WORDS)
VIT = ViTTower(input=ImageInput(size=8), patch_size=4, width=8, layers=2, heads=2)
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


def test_captions_are_encoded_twice_and_the_first_encoding_serves_both_losses() -> None:
    built = method(CLIPConfig(tower=VIT, embed_dim=6, captions=0.1), dropout=0.2).train()
    texts = built.encode("pairs", tiny_encoder.pair_batch(5))["texts"]
    assert texts.shape == (5, 2, 6)
    assert (texts[:, 0] - texts[:, 1]).abs().max() > 1e-3
    plain = method(CLIPConfig(tower=VIT, embed_dim=6), dropout=0.2).train()
    assert plain.encode("pairs", tiny_encoder.pair_batch(5))["texts"].shape == (5, 1, 6)  # weight 0: no second encoding


def test_a_guide_finds_the_false_negatives_of_captions_only() -> None:
    """Similarities of the initial text encoder, which does not train; the loss of pairs keeps all negatives."""
    chosen = {"margin": 0.1, "guide": "frozen", "hardness": 1.5}
    built = method(CLIPConfig(tower=VIT, embed_dim=6, captions=0.5, negatives=chosen))
    batch = tiny_encoder.pair_batch(8)
    initial = tiny_encoder.encoder("mean", tiny_encoder.bert_config(dropout=0.0))
    judged = initial({name: batch[name][:, 0] for name in ("input_ids", "attention_mask")})
    features = built.encode("pairs", batch)
    torch.testing.assert_close(features["judged"][:, 0], judged)
    left_out = (losses.cosine_similarity(judged, judged) > 0.9) & ~torch.eye(8, dtype=torch.bool)
    assert 0 < left_out.sum() < 56
    (texts, again), items = features["texts"].unbind(1), features["items"]
    found = built.losses({"pairs": features}, {}).losses
    expected = losses.simcse(texts, again, temperature=0.05, hardness=1.5, left_out=left_out)
    torch.testing.assert_close(found["captions"], expected)
    torch.testing.assert_close(found["contrastive"], losses.contrastive(items, texts, items, texts, torch.tensor(1 / 0.07)))
    with pytest.raises(ValueError, match="negatives has no effect: no sentence loss"):
        CLIPConfig(tower=VIT, negatives=chosen).check_settings()


@pytest.mark.parametrize("variant", ["fixed", "paper"])
def test_each_loss_uses_the_right_views(variant: str) -> None:
    """With different views, as under dropout, contrastive losses use the first, and captions compare both.

    [errata 4.1, 4.2] The paper sums over the batch, and over two directions instead of averaging them.
    """
    weights = {"i_cyclic": 0.2, "c_cyclic": 0.2, "captions": 0.1, "nli": 0.1, "nli_sentences": 0.1}
    built = method(CLIPConfig(tower=VIT, embed_dim=6, variant=variant, **weights))
    views = {
        name: F.normalize(torch.randn(*shape, 6), dim=-1)
        for name, shape in {"pairs": (5, 2), "nli": (4, 3), "nli_sentences": (3, 2)}.items()
    }
    items = F.normalize(torch.randn(5, 6), dim=-1)
    features = {name: {"texts": value} for name, value in views.items()}
    features["pairs"]["items"] = items
    first, second = views["pairs"].unbind(1)
    premise, entailment, contradiction = views["nli"].unbind(1)
    single, again = views["nli_sentences"].unbind(1)
    n = {"pairs": 5, "nli": 4, "nli_sentences": 3} if variant == "paper" else dict.fromkeys(views, 1)
    expected = {
        "contrastive": losses.contrastive(items, first, items, first, 1 / 0.07) * n["pairs"] * (2 if n["pairs"] > 1 else 1),
        "i_cyclic": losses.consistency(items, first, items, first) * n["pairs"],
        "c_cyclic": losses.consistency(items, first, first, items) * n["pairs"],
        "captions": losses.simcse(first, second, temperature=0.05) * n["pairs"],
        "nli": losses.simcse(premise, entailment, contradiction) * n["nli"],
        "nli_sentences": losses.simcse(single, again) * n["nli_sentences"],
    }
    found = built.losses(features, {}).losses
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value.item(), rel=1e-5), name


def test_released_truncates_the_end_token_of_long_texts() -> None:
    """CyCLIP truncates tokens including the end of the text, and uses the largest ID as the end."""
    texts = ["a dog runs in the park", "the happy woman plays guitar on the street"]
    fixed = CLIPConfig(tower=VIT).build(tiny_encoder.encoder("lasttoken")).sentence_encoder.tokenize(texts, max_length=6)
    assert fixed["input_ids"][:, -1].tolist() == [3, 3]
    config = CLIPConfig(tower=VIT, variant="released")
    released = config.build(tiny_encoder.encoder("lasttoken")).sentence_encoder.tokenize(texts, max_length=6)
    assert 3 not in released["input_ids"]
    for ids, mask in zip(released["input_ids"], released["attention_mask"], strict=True):
        assert ids[mask.sum() - 1] == ids.max()
    roberta = config.build(tiny_encoder.encoder("mean")).sentence_encoder.tokenize(texts, max_length=6)
    assert roberta["input_ids"][:, -1].tolist() == [3, 3]  # CLAP does not pool at the end token


def test_the_scale_is_clamped_and_logged() -> None:
    built = method(CLIPConfig(tower=VIT, embed_dim=6))
    for start, end in ((9.0, 100.0), (-1.0, 1.0), (2.0, 7.389056)):
        built.sentence_encoder.logit_scale.data.fill_(start)
        built.after_step(1)
        assert built({"pairs": tiny_encoder.pair_batch(3)}).metrics["logit_scale"].item() == pytest.approx(end, rel=1e-5)
    groups = built.param_groups("pairs")
    assert any(p is built.sentence_encoder.logit_scale for p in groups["biases_and_norms"])  # no weight decay
