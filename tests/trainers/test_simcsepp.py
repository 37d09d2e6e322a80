"""SimCSE++: loss, features and modes compared with explicit loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from multicse.models.adapters import without_dropout
from tests.models import tiny_encoder
from tests.worlds import example

SimCSEPPConfig = example("simcsepp").SimCSEPPConfig


def made(**settings: object) -> Any:
    encoder = tiny_encoder.encoder(config=tiny_encoder.bert_config(0.1))
    return SimCSEPPConfig.model_validate(settings).build(encoder).double().train()


def naive_text(views: np.ndarray, plain: np.ndarray, temperature: float, scale: float) -> float:
    views, plain = (z / np.linalg.norm(z, axis=-1, keepdims=True) for z in (views, plain))
    total = 0.0
    for i in range(len(plain)):
        positive = np.exp(scale * views[i, 0] @ views[i, 1] / temperature)
        negatives = sum(np.exp(plain[i] @ plain[j] / temperature) for j in range(len(plain)) if j != i)
        total -= np.log(positive / (positive + negatives))
    return total / len(plain)


def naive_dimensions(views: np.ndarray, temperature: float) -> float:
    first, second = ((z - z.mean(0)) / np.sqrt(z.var(0) + 1e-5) for z in (views[:, 0], views[:, 1]))
    total = 0.0
    for k in range(views.shape[2]):
        logits = [(first[:, k] * second[:, m]).mean() / temperature for m in range(views.shape[2])]
        total -= logits[k] - np.log(np.exp(logits).sum())
    return total / views.shape[2]


def test_losses_equal_explicit_loops() -> None:
    method, batch = made(temperature=0.1, positive_scale=0.9, dimension_temperature=0.5), tiny_encoder.text_batch(5)
    with torch.no_grad():
        features = method.encode("text", batch)
        found = method.losses({"text": features}, {"text": batch}).losses
    views, plain = features["views"].numpy(), features["plain"].numpy()
    assert found["text"].item() == pytest.approx(naive_text(views, plain, 0.1, 0.9), rel=1e-10)
    assert found["dimensions"].item() == pytest.approx(naive_dimensions(views, 0.5), rel=1e-10)
    assert method.loss_weights == {"dimensions": 0.1}


def test_without_dropout_restores_each_mode() -> None:
    method = made()
    method.sentence_encoder.model.encoder.layer[0].eval()
    modes = [part.training for part in method.modules()]
    with pytest.raises(KeyError), without_dropout(method):
        assert not any(part.training for part in method.modules())
        raise KeyError
    assert [part.training for part in method.modules()] == modes and {*modes} == {True, False}
