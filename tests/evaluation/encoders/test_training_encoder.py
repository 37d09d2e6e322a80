"""A module in training with pictures and sounds behind `encode`: batches, order, modes and scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from multicse.evaluation.encoders.encoder import ModuleEncoder
from multicse.evaluation.task import EvaluationError, Sound

WIDTH = 24


class Tower(nn.Module):
    """The mean colour of a picture, or the loudness of 3 parts of a sound, through a linear map; it takes no texts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(3)  # in training mode it would mix the items of a batch
        self.tower = nn.Linear(3, WIDTH)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.sizes: list[int] = []

    def items(self, items: list[Any]) -> Tensor:
        assert not torch.is_grad_enabled() and not self.drop.training
        self.sizes.append(len(items))
        return self.tower(self.norm(torch.stack([torch.from_numpy(self.features(item)) for item in items])))

    def features(self, item: Any) -> np.ndarray:
        if isinstance(item, Sound):
            return np.array([np.abs(part).mean() for part in np.array_split(item.samples, 3)], dtype=np.float32)
        return item.mean((0, 1)).astype(np.float32) / 255


def no_texts(texts: list[str]) -> dict[str, Any]:
    return {}


def encoder_of(module: Tower) -> ModuleEncoder:
    others = {"image": module.items, "audio": module.items}
    return ModuleEncoder(no_texts, module, others=others, logit_scale=lambda: module.scale.exp().item())


def pictures(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (4 + i % 5, 6, 3), dtype=np.uint8) for i in range(count)]


def test_items_in_order_in_batches_and_in_evaluation_mode() -> None:
    module = Tower().train()
    encoder = encoder_of(module)
    most = ModuleEncoder.items_at_once
    items = pictures(2 * most + 3)
    vectors = encoder.encode(items, "image")
    assert module.sizes == [most, most, 3] and vectors.dtype == np.float32 and vectors.shape == (len(items), WIDTH)
    assert module.norm.training  # the modes are put back
    module.eval()
    with torch.no_grad():
        alone = np.concatenate([module.items([item]).numpy() for item in items])
    np.testing.assert_allclose(vectors, alone, atol=1e-5)
    sounds = [Sound(np.full(48, i / 10, dtype=np.float32), 8000) for i in range(4)]
    assert encoder.encode(sounds, "audio").shape == (4, WIDTH)


def test_what_it_does_not_take() -> None:
    module = Tower()
    assert len(encoder_of(module).encode([], "image")) == 0
    with pytest.raises(EvaluationError, match="audio"):
        ModuleEncoder(no_texts, module, others={"image": module.items}).encode(pictures(1), "audio")
