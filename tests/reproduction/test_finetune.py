"""Fine-tuning is better than frozen embeddings, reproducible, and does not change the encoder."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicse.evaluation.encoders.encoder import FolderEncoder, load_encoder
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import EvaluationError, encode_once
from multicse.evaluation.tasks.classification import Labelled, Row
from multicse.reproduction.tasks.finetune import FinetuneTask, Training
from tests.evaluation.evaluation_helpers import Bag, sentence, tiny_bert

FAST = Training(epochs=6, lr=3e-3, batch=16)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> FolderEncoder:
    return load_encoder(tiny_bert(tmp_path_factory.mktemp("bert")), device="cpu")


def word_order(count: int, seed: int) -> list[Row]:
    """Return texts with the class "dog before cat", which a mean of word vectors cannot distinguish."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        first, second = ("dog", "cat") if i % 2 else ("cat", "dog")
        rows.append(Row(f"{first} {sentence(rng, 3)} {second}", first, f"line {i}"))
    return rows


@pytest.fixture(scope="module")
def data() -> Labelled:
    return Labelled("order", {"train": word_order(320, 0), "dev": word_order(60, 1), "test": word_order(60, 2)})


def states(encoder: FolderEncoder) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in encoder.model.state_dict().items()}


def test_learns_and_leaves_the_encoder_alone(encoder: FolderEncoder, data: Labelled) -> None:
    before, training = states(encoder), encoder.model.training
    vectors = encoder.encode(["the dog runs"])
    task = FinetuneTask("order", data, FAST, "three-layers")
    assert task.sentences() == []
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    metrics, details, _ = task.score(encode_once([task], encoder))
    assert torch.equal(torch.rand(3), expected), "the global random state moved"
    assert metrics["accuracy"] > 90
    assert details["dev_accuracy"] == max(details["dev_by_epoch"])
    assert len(details["dev_by_epoch"]) == 6
    assert (details["train"], details["classes"], details["training"]["lr"]) == (320, ["cat", "dog"], 3e-3)
    after = states(encoder)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert encoder.model.training == training
    assert all(p.grad is None for p in encoder.model.parameters())
    np.testing.assert_array_equal(encoder.encode(["the dog runs"]), vectors)


def test_a_pair_is_one_sequence(encoder: FolderEncoder) -> None:
    """Only the second sentence determines the class."""
    rows = [row._replace(text=sentence(random.Random(i), 3), second=row.label) for i, row in enumerate(word_order(440, 3))]
    data = Labelled("pairs", {"train": rows[:320], "dev": rows[320:380], "test": rows[380:]})
    assert FinetuneTask("pairs", data, FAST).score(encoder).metrics["accuracy"] > 80


def test_truncation_and_a_constant_learning_rate_are_options(
    encoder: FolderEncoder, data: Labelled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By options of the task: 40 rows, batch size 20; texts of 5 tokens including [CLS] and [SEP]."""
    rates: list[float] = []
    lengths: list[int] = []
    step, preprocess = torch.optim.AdamW.step, type(encoder.model).preprocess

    def stepped(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    def preprocessed(self: Any, *args: Any, **kwargs: Any) -> Any:
        features = preprocess(self, *args, **kwargs)
        lengths.append(features["input_ids"].shape[1])
        return features

    monkeypatch.setattr(torch.optim.AdamW, "step", stepped)
    monkeypatch.setattr(type(encoder.model), "preprocess", preprocessed)
    for part in data.parts:
        lines = ["label\ttext", *(f"{row.label}\t{row.text}" for row in data.parts[part][:40])]
        (tmp_path / f"order.{part}.tsv").write_text("\n".join(lines) + "\n")
    options = "epochs=2&batch=20&lr=0.001&warmup=0&weight_decay=0&schedule=constant&clip=0&max_length=5"
    (task,) = make_tasks([f"finetune:{tmp_path}/order.train.tsv?{options}"])
    task.score(encoder)
    assert rates == [0.001] * 4 and set(lengths) == {5}


def test_accumulation_of_gradients_is_an_option(
    encoder: FolderEncoder, data: Labelled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With learning rate 0, a repeated batch yields once, twice and three times its gradient."""
    norms: list[float] = []

    def stepped(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> None:
        norms.append(float(self.param_groups[0]["params"][-1].grad.norm()))

    monkeypatch.setattr(torch.optim.AdamW, "step", stepped)
    few = Labelled("few", {part: rows[:8] for part, rows in data.parts.items()})
    for module in encoder.model.modules():
        monkeypatch.setattr(module, "p", 0.0, raising=False)
    for accumulate, times in ((False, [1, 1, 1]), (True, [1, 2, 3])):
        norms.clear()
        FinetuneTask("few", few, Training(epochs=3, batch=8, clip=0, accumulate=accumulate)).score(encoder)
        assert norms == pytest.approx([norms[0] * time for time in times], rel=1e-4)


def test_invalid_settings_are_refused(data: Labelled) -> None:
    with pytest.raises(EvaluationError, match="Bag"):
        FinetuneTask("order", data).score(Bag())
    for option in ("head=threelayers", "lr=0", "schedule=cosine", "epochs=x"):
        with pytest.raises(EvaluationError, match=f"option {option}: Input should be"):
            make_tasks([f"finetune:x.tsv?{option}"])
