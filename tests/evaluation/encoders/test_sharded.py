"""Collective encoding in two gloo processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from multicse.evaluation.encoders.encoder import ShardedEncoder
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.report import evaluate
from multicse.evaluation.task import EvaluationError, Sound
from tests.evaluation.evaluation_helpers import Bag, rated, write_raw
from tests.worlds import in_processes

RNG = np.random.default_rng(0)
IMAGES: list[Any] = [RNG.integers(0, 256, (3 + i % 4, 5, 3), dtype=np.uint8) for i in range(7)]
CLIPS: list[Any] = [Sound(RNG.standard_normal(40 * (1 + i % 3)).astype(np.float32), 8000) for i in range(5)]
ITEMS = [" ".join(["dog", "cat", "man"][i % 3 :] * (1 + i % 4)) + f" w{i}" for i in range(7)]


class FailsOnRankOne(Bag):
    def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
        if dist.get_rank() == 1:
            raise RuntimeError("out of memory on purpose")
        return super().encode(items, modality)


class Measures:
    """Encodes an image or audio clip as its mean and standard deviation, and records the sizes of the items."""

    logit_scale = 14.0

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        arrays = [item.samples if modality == "audio" else item for item in items]
        self.sizes += [array.size for array in arrays]
        return np.stack([[array.mean(), array.std()] for array in arrays])


def check(rank: int, place: str) -> None:
    folder = Path(place)
    alone = Bag().encode(ITEMS).astype(np.float32)
    bag = Bag()
    encoder = ShardedEncoder(bag)
    np.testing.assert_array_equal(encoder.encode(ITEMS), alone)  # every rank, every row, in order
    assert len(bag.seen) == (4 if rank == 0 else 3)  # each rank did its share only
    np.testing.assert_array_equal(encoder.encode(ITEMS[:1]), alone[:1])  # rank 1 has nothing to do
    assert len(encoder.encode([])) == 0

    tasks = make_tasks(["stsb-dev", "stsb-dev-geometry"], folder)
    assert evaluate(tasks, encoder)["stsb-dev"]["spearman"] == pytest.approx(
        evaluate(tasks, Bag())["stsb-dev"]["spearman"], abs=1e-4
    )

    wanted: type[Exception] = RuntimeError if rank == 1 else EvaluationError
    with pytest.raises(wanted, match="out of memory on purpose"):
        ShardedEncoder(FailsOnRankOne()).encode(ITEMS)
    with pytest.raises(EvaluationError, match=r"\[7, 6\]"):
        encoder.encode(ITEMS[: 7 - rank])
    np.testing.assert_array_equal(encoder.encode(ITEMS), alone)  # the group still works after an error
    check_others()
    (folder / f"done-{rank}").touch()


def check_others() -> None:
    for modality, items in (("image", IMAGES), ("audio", CLIPS)):
        encoder = ShardedEncoder(measures := Measures())
        alone = Measures().encode(items, modality).astype(np.float32)
        np.testing.assert_array_equal(encoder.encode(items, modality), alone)
        assert encoder.logit_scale == 14.0
        sizes: list[torch.Tensor] = [torch.zeros(1), torch.zeros(1)]
        dist.all_gather(sizes, torch.tensor([float(sum(measures.sizes))]))
        total = sum(getattr(item, "samples", item).size for item in items)
        assert float(sum(sizes)) == total and max(sizes) < 0.7 * total  # by size, not by the `len` of an image or Sound


def test_two_processes(tmp_path: Path) -> None:
    write_raw(tmp_path / "STSB.dev.raw.tsv", rated(31))
    in_processes(check, tmp_path)
    assert {path.name for path in tmp_path.glob("done-*")} == {"done-0", "done-1"}


def test_a_single_worker_uses_the_encoder_itself() -> None:
    np.testing.assert_array_equal(ShardedEncoder(Bag()).encode(ITEMS), Bag().encode(ITEMS))
