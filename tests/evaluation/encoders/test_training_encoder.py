"""A module in training with two towers behind `encode`: batches, modes and order, and zero-shot tasks through it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evaluation.encoders.encoder import ITEMS, ModuleEncoder
from evaluation.encoders.sharded import ShardedEncoder
from evaluation.registry import make_tasks
from evaluation.task import Encoder, EvaluationError, Sound, evaluate
from evaluation.tasks.zero_shot import CLAP_TEMPLATES
from tests.evaluation.paired_helpers import image_shards, sound_shards

BUCKETS, WIDTH = 997, 24


class TwoTowers(nn.Module):
    """Bags of hashed words; colours on a coarse grid, or the loudness of 12 parts of a sound, through a linear map."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(BUCKETS, WIDTH)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(12)  # in training mode it would mix the items of a batch
        self.tower = nn.Linear(12, WIDTH)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.texts = 0
        self.sizes: list[int] = []

    def tokenize(self, texts: list[str]) -> dict[str, Tensor]:
        self.texts += len(texts)
        rows = [[zlib.crc32(word.encode()) % BUCKETS for word in text.lower().split()] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}

    def forward(self, tokens: dict[str, Tensor]) -> Tensor:
        mask = tokens["attention_mask"][..., None]
        return self.drop((self.words(tokens["input_ids"]) * mask).sum(1) / mask.sum(1))

    def items(self, items: list[Any]) -> Tensor:
        assert not torch.is_grad_enabled() and not self.drop.training
        self.sizes.append(len(items))
        return self.tower(self.norm(torch.stack([torch.from_numpy(self.features(item)) for item in items])))

    def features(self, item: Any) -> np.ndarray:
        if isinstance(item, Sound):
            return np.array([np.abs(part).mean() for part in np.array_split(item.samples, 12)], dtype=np.float32)
        parts = [part for half in np.array_split(item, 2) for part in np.array_split(half, 2, axis=1)]
        return np.concatenate([part.mean((0, 1)) for part in parts]).astype(np.float32) / 255


def encoder_of(module: TwoTowers) -> ModuleEncoder:
    method = nn.ModuleDict({"encoder": module, "frozen": nn.Dropout().eval()}).train()
    method["frozen"].eval()
    others = {"image": module.items, "audio": module.items}
    return ModuleEncoder(
        module.tokenize, module, module=method, others=others, logit_scale=lambda: module.scale.exp().item()
    )


def pictures(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (4 + i % 5, 6, 3), dtype=np.uint8) for i in range(count)]


def test_items_in_order_in_batches_and_in_evaluation_mode() -> None:
    module = TwoTowers()
    encoder = encoder_of(module)
    items = pictures(2 * ITEMS + 3)
    vectors = encoder.encode(items, "image")
    assert module.sizes == [ITEMS, ITEMS, 3] and vectors.dtype == np.float32 and vectors.shape == (len(items), WIDTH)
    module.eval()
    with torch.no_grad():
        alone = np.concatenate([module.items([item]).numpy() for item in items])
    np.testing.assert_allclose(vectors, alone, atol=1e-5)
    sounds = [Sound(np.full(48, i / 10, dtype=np.float32), 8000) for i in range(4)]
    assert encoder.encode(sounds, "audio").shape == (4, WIDTH)


def test_scale_is_that_of_now() -> None:
    module = TwoTowers()
    encoder = ShardedEncoder(encoder_of(module))
    assert encoder.logit_scale == pytest.approx(np.exp(2))
    module.scale.data.fill_(1.0)
    assert encoder.logit_scale == pytest.approx(np.e)
    fixed = ModuleEncoder(module.tokenize, module)
    assert fixed.logit_scale is None
    fixed.logit_scale = 20.0
    assert ShardedEncoder(fixed).logit_scale == 20.0


def test_what_it_does_not_take() -> None:
    module = TwoTowers()
    assert len(encoder_of(module).encode([], "image")) == 0
    for others in ({}, {"image": module.items}):
        with pytest.raises(EvaluationError, match="audio"):
            ModuleEncoder(module.tokenize, module, others=others).encode(pictures(1), "audio")


# --------------------------------------------------------------------------------------------------------------- zero-shot


def naive_accuracy(
    encoder: Encoder, items: list[Any], labels: list[int], classes: list[str], templates: tuple[str, ...], modality: str
) -> float:
    """One prompt, one class and one item at a time."""
    weights = []
    for name in classes:
        vectors = [encoder.encode([t.replace("{label}", name).replace("{}", name)])[0] for t in templates]
        weights.append(np.mean([v / np.linalg.norm(v) for v in vectors], axis=0))
    units = [w / np.linalg.norm(w) for w in weights]
    best = [int(np.argmax([w @ encoder.encode([item], modality)[0] for w in units])) for item in items]
    return 100 * float(np.mean(np.array(best) == labels))


@pytest.mark.parametrize(("modality", "count"), [("image", 1), ("audio", 29)])
def test_zero_shot_in_training(tmp_path: Path, modality: str, count: int) -> None:
    names = ["red", "green", "blue", "a long name"]
    labels = [i % 4 for i in range(70)]
    make = image_shards if modality == "image" else sound_shards
    shards = make(tmp_path / "shards", [[]] * 70, labels)
    (tmp_path / "names.json").write_text(json.dumps(names))
    query = f"classes={tmp_path / 'names.json'}"
    templates: tuple[str, ...] = ("a photo of a {}.",) if modality == "image" else ("This is a sound of {}",)
    if count == 29:
        query, templates = f"{query}&templates=clap29", CLAP_TEMPLATES
    (task,) = make_tasks([f"zero-shot:{shards}?{query}"])
    module = TwoTowers()
    found = evaluate([task], ShardedEncoder(encoder_of(module)))[task.name]["accuracy"]
    assert module.texts == 4 * len(templates)  # the prompts of 70 items in two chunks, encoded once
    assert len(templates) == count
    items = [sample.item for chunk in task.samples.chunks() for sample in chunk]  # type: ignore[attr-defined]
    assert found == pytest.approx(naive_accuracy(encoder_of(module), items, labels, names, templates, modality))
