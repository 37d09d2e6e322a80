"""Folders and modules as encoders give the libraries' vectors, in fewer and fuller batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from multicse.evaluation.encoders.encoder import ModuleEncoder, load_encoder
from multicse.evaluation.task import EvaluationError
from tests.evaluation.evaluation_helpers import texts, tiny_bert


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("tiny-bert"))


@pytest.fixture(scope="module")
def sentence_bert(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-sentence-bert")
    encoder = load_encoder(bert, pooling="cls", device="cpu")
    encoder.model.save(str(folder))
    return folder


class Recorder(nn.Module):
    """Returns the sum of the token IDs and the training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.awake, self.frozen = nn.Dropout(0.5), nn.Dropout(0.5).eval()
        self.shapes: list[tuple[int, ...]] = []
        self.tokens = self.cells = 0

    def forward(self, features: dict[str, Any]) -> Tensor:
        ids, mask = features["input_ids"], features["attention_mask"]
        self.tokens, self.cells = self.tokens + int(mask.sum()), self.cells + mask.numel()
        self.shapes.append(tuple(ids.shape))
        assert not self.training and not self.awake.training and not torch.is_grad_enabled()
        return torch.stack([(ids * mask).sum(1), mask.sum(1)], dim=1).double()


@pytest.mark.parametrize("side", ["left", "right"])
def test_module_encoder_returns_rows_in_order_without_padding_waste(bert: Path, side: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert, padding_side=side)
    module = Recorder()
    module.train()
    module.frozen.eval()
    items = texts(700, longest=20)
    encoder = ModuleEncoder(
        lambda batch: dict(tokenizer(batch, padding=True, truncation=True, return_tensors="pt")),
        module,
        batch_size=8,
        logit_scale=lambda: 2.0,
    )
    got = encoder.encode(items)
    ids = [tokenizer(text)["input_ids"] for text in items]
    assert got.tolist() == [[float(sum(row)), float(len(row))] for row in ids]
    assert len(encoder.encode([])) == 0 and encoder.logit_scale == 2
    with pytest.raises(EvaluationError, match="supports only texts, but the task needs modality 'audio'"):
        encoder.encode([np.zeros(3)], "audio")
    assert module.tokens / module.cells > 0.97
    assert all(rows * width <= 8 * 32 for rows, width in module.shapes)
    assert module.training and module.awake.training and not module.frozen.training


def test_the_hash_covers_weights_but_not_the_card(bert: Path, sentence_bert: Path) -> None:
    first = load_encoder(sentence_bert, device="cpu").hash
    (sentence_bert / "README.md").write_text("another card")
    assert load_encoder(sentence_bert, device="cpu").hash == first
    assert load_encoder(bert, device="cpu").hash != first
