"""MultiCSE: each part equals the loss of its paper, and text alone equals SimCSE."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multicse.data.streams.base import Batch
from multicse.trainers import losses
from multicse.trainers.multicse import MultiCSE, MultiCSEConfig
from multicse.trainers.sgbert import SGBERTConfig
from multicse.trainers.simcse import NegativesConfig, SimCSEConfig
from tests.models import tiny_encoder
from tests.trainers.test_sgbert import contrast
from tests.worlds import AUDIO, IMAGE

BATCHES = {"image": tiny_encoder.image_batch(6), "audio": tiny_encoder.audio_batch(5), "text": tiny_encoder.text_batch(7)}


def made(**settings: Any) -> MultiCSE:
    config = MultiCSEConfig(**{"text": SimCSEConfig(head="none"), **settings})
    return config.build(tiny_encoder.encoder("mean", tiny_encoder.bert_config(0.0))).eval()


def out(method: MultiCSE) -> dict[str, Tensor]:
    return method({name: BATCHES[name] for name in next(iter(method.config.updates().values()))}).losses


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_matryoshka_adds_losses_of_the_text_only() -> None:
    """Guidance, groups and consistency do not use the truncated views, so they are not added again for every size."""
    method = made(image=IMAGE, audio=AUDIO, guidance=0.5, grouped=0.2, cyclic=3.0)
    plain = out(method)
    method.matryoshka, method.vectors = (4, 8), method.config.vectors()
    nested = out(method)
    z = method.encode("text", BATCHES["text"])["views"]
    cut = [F.normalize(z[..., :size], dim=-1) for size in (4, 8)]
    shorter = [losses.simcse(views[:, 0], views[:, 1]) for views in cut]
    assert nested.keys() == plain.keys() and all(nested[name] == plain[name] for name in plain.keys() - {"text"})
    torch.testing.assert_close(nested["text"], plain["text"] + sum(shorter))


def test_guidance_is_sg_opt() -> None:
    method = made(guidance=1.0, guide=SGBERTConfig(head_width=0, temperature=0.5))
    tokens = {name: t[:, 0] for name, t in BATCHES["text"].tensors.items()}
    assert method.guide is not None
    with torch.no_grad():
        states = method.guide.teacher(**tokens, output_hidden_states=True).hidden_states
    kept = tokens["attention_mask"].bool()
    layers = [torch.stack([row[there].amax(0) for row, there in zip(s, kept, strict=True)]) for s in states]
    h = torch.stack(layers, 1).double().numpy()  # (B, K, d)
    c = method.encode("text", BATCHES["text"])["pooled"][:, 0].detach().double().numpy()
    assert out(method)["guidance"].item() == pytest.approx(np.mean(contrast(c, h, 0.5)), rel=1e-4)


def test_cyclic_consistency_by_loops() -> None:
    """Over sentences j and images or audio clips k, two views each; the modalities are not paired."""
    method = made(image=IMAGE, audio=AUDIO, cyclic=1.0).train()
    torch.manual_seed(1)
    z = {name: torch.randn(len(batch), 2, 16) for name, batch in BATCHES.items()}
    u = {name: (views / views.norm(dim=-1, keepdim=True)).double().numpy() for name, views in z.items()}
    found = method.losses({name: {"views": z[name], "pooled": z[name]} for name in z}, BATCHES).losses["cyclic"]
    terms = []
    for one, other in (("image", "audio"), ("image", "text"), ("audio", "text")):
        for same in (True, False):
            rows = [sum((a[0] @ b[0 if same else 1] - a[1] @ b[1 if same else 0]) ** 2 for b in u[other]) for a in u[one]]
            terms.append(np.mean(rows))
    assert found.item() == pytest.approx(np.mean(terms), rel=1e-5)


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_whitened_contrast_by_eigenvectors(shrinkage: float) -> None:
    """The loss uses a Cholesky factor of the covariance; cosines in principal axes are equal."""
    torch.manual_seed(0)
    z = torch.randn(30, 2, 16) @ torch.randn(16, 16) + 3
    rows = z.flatten(0, 1).double().numpy()
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    if shrinkage < 1:
        values = (1 - shrinkage) * values + shrinkage * values.mean()
    w = (rows - rows.mean(0)) @ vectors / (np.sqrt(values) if shrinkage < 1 else 1)
    first, second = w[::2], w[1::2]
    logits = np.array([[cosine(a, b) / 0.05 for b in second] for a in first])
    naive = np.mean(np.log(np.exp(logits).sum(1)) - logits.diagonal())
    assert made(shrinkage=shrinkage).text_loss({"views": z}, Batch({})).item() == pytest.approx(naive, rel=1e-3)


@pytest.mark.parametrize(("antonyms", "margin", "hardness"), [(True, None, 0.0), (False, None, 0.0), (True, 0.1, 2.0)])
def test_synonyms_are_positives_and_antonyms_hard_negatives(antonyms: bool, margin: float | None, hardness: float) -> None:
    """Antonyms are negatives of all sentences; a sentence without a replaced word adds none, nor does a false negative."""
    torch.manual_seed(0)
    z, there = torch.randn(5, 3, 16), torch.tensor([True, False, True, True, False])
    negatives_of = NegativesConfig(margin=margin, hardness=hardness)
    text = SimCSEConfig(head="none", supervised=True, temperature=0.2, negatives=negatives_of)
    method = made(text=text, antonyms=antonyms)
    found = method.text_loss({"views": z}, Batch({"candidate": there})).item()
    v = z.double().numpy()
    negatives = [v[j, 2] for j in range(5) if there[j] and antonyms]
    total = []
    for i in range(5):
        for view in (0, 1):
            others = [v[j, k] for j in range(5) for k in (0, 1) if (j, k) != (i, view)] + negatives
            positive = cosine(v[i, view], v[i, 1 - view])
            cosines = [c for other in others if (c := cosine(v[i, view], other)) != positive]
            kept = [c for c in cosines if margin is None or c <= positive - margin]
            below = math.exp(positive / 0.2) + sum(math.exp(c / 0.2 + hardness * c) for c in kept)
            total.append(math.log(below) - positive / 0.2)
    assert found == pytest.approx(np.mean(total), rel=1e-5)


@pytest.mark.parametrize(("schedule", "half"), [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5)])
def test_schedule_of_the_weights(schedule: str, half: float) -> None:
    """The weights of images, audio and cycles decay; the parts on text are constant."""
    method = made(image=IMAGE, cyclic=2.0, guidance=1.0, schedule=schedule)
    for progress, left in ((0.0, 1.0), (0.5, half), (1.0, 1.0 if schedule == "constant" else 0.0)):
        method.progress = progress
        weights = method.loss_weights
        assert [weights[name] for name in ("image", "cyclic", "guidance")] == pytest.approx([0.05 * left, 2 * left, 1.0])
