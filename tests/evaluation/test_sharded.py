"""The collective encode, in two gloo processes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from evaluation_helpers import Bag, rated, write_raw

from evaluation.registry import make_tasks
from evaluation.sharded import ShardedEncoder
from evaluation.task import EvaluationError, evaluate

ITEMS = [" ".join(["dog", "cat", "man"][i % 3 :] * (1 + i % 4)) + f" w{i}" for i in range(7)]


class FailsOnRankOne(Bag):
    def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
        if dist.get_rank() == 1:
            raise RuntimeError("out of memory on purpose")
        return super().encode(items, modality)


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        check(rank, Path(folder))
    finally:
        dist.destroy_process_group()


def check(rank: int, folder: Path) -> None:
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
    text = "out of memory on purpose" if rank == 1 else "another worker: rank 1: RuntimeError: out of memory on purpose"
    with pytest.raises(wanted, match=text):
        ShardedEncoder(FailsOnRankOne()).encode(ITEMS)
    with pytest.raises(EvaluationError, match=r"different lists \(\[7, 6\] items by rank\)"):
        encoder.encode(ITEMS[: 7 - rank])
    np.testing.assert_array_equal(encoder.encode(ITEMS), alone)  # the group still works after an error
    (folder / f"done-{rank}").touch()


def test_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_raw(tmp_path / "STSB.dev.raw.tsv", rated(31))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)]))
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    assert {path.name for path in tmp_path.glob("done-*")} == {"done-0", "done-1"}


def test_alone_it_is_the_encoder_itself() -> None:
    np.testing.assert_array_equal(ShardedEncoder(Bag()).encode(ITEMS), Bag().encode(ITEMS))
